// People beside the model: their answers against a score as a 2-D histogram, and the lists on which both disagree.

sections.people = (box, { histograms }, report) => {
  const heat = make("div", { "data-testid": "people-histogram" });
  const figures = histograms.map(heatFigure);
  const show = (k) => place(heat, [figures[k]]);
  const select = makeSelect(histograms.map(({ title }) => title), show, "people-score");
  box.append(make("h3", "People against a score"), make("p", make("label", "Score ", select)), heat);
  if (figures.length) show(0);
  const count = (n, list) => make("span", make("strong", whole(n)), " ", list && lookAt(report, list));
  return ({ key }) =>
    key === "quarters" && {
      easy: (row, k) => count(row[1], k === 1 && "people_hard"),
      hard: (row, k) => count(row[2], k === 0 && "people_easy"),
    };
};

// Counts in a grid, darker where there are more; the line is the median of the score.
function heatFigure({ title, note, x, y, nx, ny, counts, medians }) {
  const canvas = make("div.canvas");
  const text = "Stronger: more samples (logarithmic). Line: median of the score.";
  const figure = make("figure", canvas, make("p.note", named(note), make("br"), text));
  const most = Math.max(...counts, 1);
  const edge = (axis, k, n) => axis.low + (k / n) * (axis.high - axis.low);
  const paint = (width) => {
    const { px, py, nodes } = axes({ width, height: 320 }, x, y);
    const cells = counts.flatMap((count, at) => {
      if (count === 0) return [];
      const [k, l] = [at % nx, Math.floor(at / nx)];
      const [x0, x1, y0, y1] = [edge(x, k, nx), edge(x, k + 1, nx), edge(y, l, ny), edge(y, l + 1, ny)];
      const shade = (0.12 + (0.88 * Math.log1p(count)) / Math.log1p(most)).toFixed(3);
      const box = { x: px(x0), y: py(y1), width: px(x1) - px(x0), height: py(y0) - py(y1), "fill-opacity": shade };
      const name = `${counted(count, "sample")}: people ${range(x0, x1)}, ${visible(title)} ${range(y0, y1)}`;
      return draw("rect.heat", box, draw("title", name));
    });
    const d = linePath(medians.map((_, k) => edge(x, k + 0.5, nx)), medians, px, py, true);
    const label = `2-D histogram of ${visible(title)} against human selection frequency. ${visible(note)}`;
    return picture(width, 320, label, ...nodes, ...cells, draw("path.median", { d }));
  };
  return { figure, start: () => drawnToWidth(canvas, paint) };
}
