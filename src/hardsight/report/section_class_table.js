// Classes: their distributions as ridges, and small ones in the table.

sections.class_table = (box, { tables: [table], edges, histograms }, report) => {
  const at = (name) => table.columns.findIndex(({ key }) => key === name);
  const lines = table.rows.map((row, k) => ({
    name: visible(row[0]),
    mean: row[at(table.sort)]?.[0],
    n: sum(histograms[k] ?? []),
    counts: histograms[k],
  }));
  if (edges.length && lines.length) box.append(make("div", { "data-testid": "ridge" }, ridge(lines, table, edges, report)));
  return () => ({
    name: ([name], k) => link(name, () => report.chooseClass(table.codes[k])),
    histogram: (_, k) => miniHistogram(edges, histograms[k]),
  });
};

// Up to 30 classes, hardest on top, on one axis and one scale.
function ridge(all, { ascending }, edges, report) {
  const heading = make("h3", "Hardness per class");
  if (all.length > 30) {
    const text = `With ${whole(all.length)} classes, each class has its small histogram in the table below.`;
    return [heading, makeNote(text)];
  }
  const lines = all.filter(({ n }) => n > 0).sort((a, b) => (ascending ? -1 : 1) * (b.mean - a.mean));
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
