// Classes: their distributions as ridges, and a table.

sections.class_table = (box, table, report) => {
  const { rows, columns, histograms, histogram_edges: edges } = table;
  if (rows.length === 0) return box.append(makeNote("There is no class to list."));
  const place = new Map(columns.map(({ key }, at) => [key, at]));
  const name = (row) => row[place.get("name")];
  const more = [];
  if (edges.length) {
    box.append(make("div", { "data-testid": "ridge" }, ridge(table, name, (row) => row[place.get(table.sort)], report)));
    const counts = new Map(rows.map((row, k) => [row, histograms[k]]));
    const title = `${report.mainTitle}, ${Number(edges[0].toPrecision(3))} to ${Number(edges.at(-1).toPrecision(3))}`;
    more.push({ after: "n", key: "histogram", title, cell: (row) => miniHistogram(edges, counts.get(row)) });
  }
  const cells = { name: (row) => link(name(row), () => report.chooseClass(row[place.get("code")])) };
  // Classes that are called by their numbers need no second column of them.
  if (rows.every((row) => String(row[place.get("code")]) === name(row))) cells.code = null;
  box.append(payloadTable(table, cells, more));
};

const link = (text, click) => make("button.link", { type: "button", click }, named(text));

// Up to 30 classes, hardest on top, on one axis and one scale.
function ridge(table, name, mean, report) {
  const heading = make("h3", "Hardness per class");
  const { rows, ascending, histograms, histogram_edges: edges } = table;
  if (rows.length > 30) {
    const text = `With ${whole(rows.length)} classes, each class has its small histogram in the table below.`;
    return [heading, makeNote(text)];
  }
  const lines = rows
    .map((row, k) => ({ name: visible(name(row)), mean: mean(row), n: sum(histograms[k]), counts: histograms[k] }))
    .filter(({ n }) => n > 0)
    .sort((a, b) => (ascending ? -1 : 1) * (b.mean - a.mean));
  const shares = lines.map(({ counts, n }) => counts.map((count) => count / n));
  const most = Math.max(...shares.flat(), 0) || 1;
  const canvas = make("div.canvas");
  const paint = (width) => {
    const left = within(width * 0.22, 60, 170);
    const letters = Math.floor(left / 7.5);
    const pitch = lines.length > 15 ? 24 : 30;
    const height = pitch * (lines.length + 0.6) + 42;
    const x = { low: edges[0], high: edges.at(-1), title: report.mainTitle };
    const { px, nodes } = axes({ width, height, left }, x);
    const parts = lines.map((line, k) => {
      const floor = pitch * (k + 1.6);
      const d = steps(edges, shares[k], px, (value) => floor - (value / most) * pitch * 1.6);
      const short = line.name.length > letters ? `${line.name.slice(0, letters - 1)}…` : line.name;
      return draw(
        "g",
        draw("title", `${line.name}: mean ${number(line.mean)}, ${counted(line.n, "sample")}`),
        draw("path.under", { d }),
        draw("path", { class: "area ridge", d }),
        svgLine("axis", left, floor, width - 14, floor),
        svgLine("mean", px(line.mean), floor - 9, px(line.mean), floor + 1),
        svgText(left - 8, floor - 3, short, "end", "name"),
      );
    });
    const label = `Histograms of ${lines.length} classes; the same numbers are in the table of classes.`;
    return picture(width, height, label, ...parts, ...nodes);
  };
  requestAnimationFrame(() => drawnToWidth(canvas, paint));
  const text = `Share of each class by ${report.mainTitle}, hardest class on top; the tick is the mean of the class.`;
  return [heading, makeNote(text), make("figure", canvas)];
}
