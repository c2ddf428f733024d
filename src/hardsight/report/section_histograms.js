// Distributions of the scores.

sections.histograms = (box, { charts }) => {
  const grid = make("div.charts", { "data-testid": "histograms" });
  box.append(grid);
  place(grid, charts.map(histogram));
};

function histogram({ key, title, edges, series }) {
  const totals = series.map(({ counts }) => sum(counts));
  const shared = series.length > 1;
  const kinds = series.map(({ name }) => (name === "wrong" ? "wrong" : name === "right" || !shared ? "right" : "other"));
  const heights = series.map(({ counts }, k) => counts.map((n) => (shared ? n / Math.max(totals[k], 1) : n)));
  const most = Math.max(...heights.flat(), 0) || 1;
  const names = series.map(({ name }, k) => `${visible(name)} (${whole(totals[k])})`);
  const canvas = make("div.canvas");
  const legend = legendOf(names.map((name, k) => [areaSwatch(kinds[k]), name]));
  const figure = make("figure", { "data-testid": `histogram-${key}` }, make("figcaption", named(title), legend), canvas);
  const paint = (width) => {
    const y = { low: 0, high: most, title: shared ? "share of each kind" : "samples", percent: shared };
    const { px, py, nodes } = axes({ width, height: 210, left: 46 }, { low: edges[0], high: edges.at(-1) }, y);
    const areas = series.map((_, k) => draw("path", { class: `area ${kinds[k]}`, d: steps(edges, heights[k], px, py) }));
    return picture(width, 210, `${visible(title)}: ${names.join(", ")}`, ...nodes, ...areas);
  };
  return { figure, start: () => drawnToWidth(canvas, paint) };
}
