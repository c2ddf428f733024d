// People beside the model: the leaderboard of the scores, and people's answers against a score as a 2-D histogram.

function drawPeople(report) {
  const { people } = report.payload;
  if (!people) return;
  drawBoard(people.board);
  const select = find("people-score");
  const figures = people.histograms.map(heatFigure);
  select.append(...people.histograms.map((one, k) => make("option", { value: k }, visible(one.title))));
  const show = () => {
    const chosen = figures[Number(select.value)];
    find("people-histogram").replaceChildren(chosen.figure);
    chosen.start();
  };
  select.addEventListener("change", show);
  if (figures.length) show();
}

const decimals = (value) => (isNumber(value) ? value.toFixed(3).replace("-", "−") : "–");

// A row per score: how well it agrees with people by each coefficient, and how far it is behind the best.
function drawBoard({ rows, coefficient, ceiling }) {
  const box = find("people-board");
  if (rows.length === 0) return box.append(make("p", { class: "note" }, "No score could be compared with people."));
  const span = (row) => ({ mean: row[coefficient], low: row[`${coefficient}_low`], high: row[`${coefficient}_high`] });
  const rule = intervalScale(rows.map(span), ceiling);
  const agreement = (key) => ({
    key,
    title: key[0].toUpperCase() + key.slice(1),
    kind: "number",
    of: (row) => row[key],
    cell: (row) => withInterval(decimals, row[key], row[`${key}_low`], row[`${key}_high`]),
  });
  const columns = [
    { key: "title", title: "score", kind: "text", of: (row) => row.title },
    { key: "kind", title: "kind", kind: "text", of: (row) => row.kind },
    {
      key: "chart",
      title: isNumber(ceiling) ? `dashed: ceiling, ${number(ceiling)}` : "",
      head: intervalHead(rule),
      cell: (row) => intervalRow(rule, span(row), ceiling),
    },
    ...["spearman", "pearson", "kendall"].filter((key) => Object.hasOwn(rows[0], key)).map(agreement),
    {
      key: "behind",
      title: "behind the best",
      kind: "number",
      of: (row) => row.behind,
      cell: (row) => withInterval(decimals, row.behind, row.behind_low, row.behind_high),
    },
    { key: "p", title: "p (corrected)", kind: "number", of: (row) => row.p_holm },
  ];
  const first = columns.find(({ key }) => key === coefficient);
  const caption = "Agreement with people: larger is better, 1 is the most there can be.";
  box.append(makeTable({ key: "board", columns, rows, first, caption, step: 30 }));
}

// Counts in a grid, darker where there are more; the line is the median of the score.
function heatFigure(one) {
  const box = make("div", { class: "canvas" });
  const told = "Stronger: more samples (logarithmic). Line: median of the score.";
  const figure = make("figure", {}, box, make("p", { class: "note" }, named(one.note), make("br"), told));
  const { nx, ny, counts, medians } = one;
  const most = Math.max(...counts, 1);
  const edge = (axis, k, n) => axis.low + (k / n) * (axis.high - axis.low);
  const paint = (width) => {
    const [height, left, floor] = [320, 54, 272];
    const x = scale(one.x.low, one.x.high, left, width - 12);
    const y = scale(one.y.low, one.y.high, floor, 24);
    const cells = counts.flatMap((count, at) => {
      if (count === 0) return [];
      const [k, l] = [at % nx, Math.floor(at / nx)];
      const [x0, x1] = [edge(one.x, k, nx), edge(one.x, k + 1, nx)];
      const [y0, y1] = [edge(one.y, l, ny), edge(one.y, l + 1, ny)];
      const shade = 0.12 + (0.88 * Math.log1p(count)) / Math.log1p(most);
      const place = { x: x(x0), y: y(y1), width: x(x1) - x(x0), height: y(y0) - y(y1) };
      const name = `${counted(count, "sample")}: people ${range(x0, x1)}, ${visible(one.title)} ${range(y0, y1)}`;
      return draw("rect", { class: "heat", "fill-opacity": shade.toFixed(3), ...place }, draw("title", {}, name));
    });
    const line = medians
      .map((value, k) => (isNumber(value) ? [x(edge(one.x, k + 0.5, nx)), y(value)] : null))
      .filter(Boolean)
      .map(([px, py], k) => `${k ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`);
    const label = `2-D histogram of ${visible(one.title)} against human selection frequency. ${visible(one.note)}`;
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      words(0, 12, visible(one.y.title), "start", "title"),
      ...ticks(one.y.low, one.y.high, 5).map(([value, text]) =>
        draw(
          "g",
          {},
          draw("line", { class: "grid", x1: left, x2: width - 12, y1: y(value), y2: y(value) }),
          words(left - 6, y(value) + 4, text, "end"),
        ),
      ),
      ...cells,
      draw("path", { class: "median", d: line.join("") }),
      bottomAxis(x, [one.x.low, one.x.high], floor, width / 90, visible(one.x.title)),
    );
  };
  return { figure, start: () => drawnToWidth(box, paint) };
}
