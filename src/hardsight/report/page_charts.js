// Charts as SVG: histograms, the ridge of the classes, the small histogram of a table row, the interval of a group.

// Draw for the width there is, and again when it changes: text in a scaled drawing would become unreadable.
function drawnToWidth(box, paint) {
  let width = 0;
  const renew = () => {
    if (box.clientWidth === 0 || box.clientWidth === width) return;
    width = box.clientWidth;
    box.replaceChildren(paint(width));
  };
  renew();
  new ResizeObserver(() => requestAnimationFrame(renew)).observe(box);
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

function scale(low, high, from, to) {
  const width = high > low ? high - low : 1;
  return (value) => from + ((value - low) / width) * (to - from);
}

// The outline of a histogram as steps.
function steps(edges, heights, x, y) {
  let d = `M${x(edges[0]).toFixed(1)} ${y(0).toFixed(1)}`;
  heights.forEach((height, k) => (d += `V${y(height).toFixed(1)}H${x(edges[k + 1]).toFixed(1)}`));
  return `${d}V${y(0).toFixed(1)}`;
}

function bottomAxis(x, edges, y, count, title) {
  const [low, high] = [edges[0], edges[edges.length - 1]];
  const parts = ticks(low, high, count).map(([value, text]) =>
    draw(
      "g",
      {},
      draw("line", { class: "axis", x1: x(value), x2: x(value), y1: y, y2: y + 5 }),
      words(x(value), y + 18, text, "middle"),
    ),
  );
  parts.push(draw("line", { class: "axis", x1: x(low), x2: x(high), y1: y, y2: y }));
  if (title) parts.push(words((x(low) + x(high)) / 2, y + 36, title, "middle", "title"));
  return draw("g", {}, ...parts);
}

const words = (x, y, text, anchor, kind) => draw("text", { x, y, "text-anchor": anchor, class: kind }, text);

function histogramFigure(histogram) {
  const { edges, series } = histogram;
  const totals = series.map((one) => sum(one.counts));
  const shared = series.length > 1;
  const kinds = series.map((one) =>
    one.name === "wrong" ? "wrong" : one.name === "right" || !shared ? "right" : "other",
  );
  const heights = series.map((one, k) =>
    one.counts.map((count) => (shared ? (100 * count) / Math.max(totals[k], 1) : count)),
  );
  const most = Math.max(...heights.flat(), 0) || 1;
  const entries = series.map((one, k) =>
    make("span", { class: "entry" }, swatch(kinds[k]), named(one.name), ` (${whole(totals[k])})`),
  );
  const box = make("div", { class: "canvas" });
  const figure = make(
    "figure",
    { "data-testid": `histogram-${histogram.key}` },
    make(
      "figcaption",
      {},
      named(histogram.title),
      make("span", { class: "legend" }, ...(shared || series[0]?.name ? entries : [])),
    ),
    box,
    histogram.note ? make("p", { class: "note" }, named(histogram.note)) : null,
  );
  const paint = (width) => {
    const height = 210;
    const x = scale(edges[0], edges[edges.length - 1], 46, width - 14);
    const y = scale(0, most, height - 26, 26);
    const parts = series.map((one, k) => `${visible(one.name)} ${whole(totals[k])}`);
    const label = `${visible(histogram.title)}: ${parts.join(", ")}`;
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      words(0, 10, shared ? "share of each kind" : "samples", "start"),
      ...ticks(0, most, 4).map(([value, text]) =>
        draw(
          "g",
          {},
          draw("line", { class: "grid", x1: 46, x2: width - 14, y1: y(value), y2: y(value) }),
          words(40, y(value) + 4, shared ? `${text} %` : text, "end"),
        ),
      ),
      ...series.map((one, k) => draw("path", { class: `area ${kinds[k]}`, d: steps(edges, heights[k], x, y) })),
      bottomAxis(x, edges, height - 26, width / 80),
    );
  };
  return { figure, start: () => drawnToWidth(box, paint) };
}

const swatch = (kind) =>
  draw(
    "svg",
    { class: "swatch", viewBox: "0 0 16 12", "aria-hidden": "true" },
    draw("path", { class: `area ${kind}`, d: "M1 11V3H15V11" }),
  );

function drawHistograms(report) {
  const box = find("histograms");
  if (!box) return;
  const figures = report.payload.histograms
    .filter((one) => one.edges?.length > 1 && one.series?.length)
    .map(histogramFigure);
  if (figures.length === 0) return box.append(make("p", { class: "note" }, "There is no distribution to draw."));
  box.append(...figures.map((one) => one.figure));
  for (const one of figures) one.start();
}

// Up to 30 classes, hardest on top, on one axis and one scale.
function drawRidge(report) {
  const table = report.payload.class_table;
  const box = find("ridge");
  if (!box || !table?.histograms?.length || !(table.histogram_edges?.length > 1)) return;
  box.append(make("h3", {}, "Hardness per class"));
  if (table.rows.length > 30) {
    box.append(
      make(
        "p",
        { class: "note" },
        `With ${whole(table.rows.length)} classes, each class has its small histogram in the table below.`,
      ),
    );
    return;
  }
  const at = table.columns.findIndex((column) => column.key === report.samples.hardness);
  const nameAt = Math.max(
    0,
    table.columns.findIndex((column) => column.key === "name"),
  );
  const rows = table.rows
    .map((row, k) => ({ name: visible(row[nameAt]), mean: at < 0 ? null : row[at], counts: table.histograms[k] ?? [] }))
    .filter((row) => sum(row.counts) > 0)
    .sort((a, b) => (report.samples.largerIsHarder ? 1 : -1) * ((b.mean ?? 0) - (a.mean ?? 0)));
  const main = report.mainTitle;
  const edges = table.histogram_edges;
  const shares = rows.map((row) => row.counts.map((count) => count / sum(row.counts)));
  const most = Math.max(...shares.flat(), 0) || 1;
  const canvas = make("div", { class: "canvas" });
  const figure = make("figure", {}, canvas);
  box.append(
    make(
      "p",
      { class: "note" },
      `Share of each class by ${main}, hardest class on top; the tick is the mean of the class.`,
    ),
    figure,
  );
  drawnToWidth(canvas, (width) => {
    const gutter = Math.min(170, Math.max(60, width * 0.22));
    const letters = Math.floor(gutter / 7.5);
    const pitch = rows.length > 15 ? 24 : 30;
    const top = pitch * 0.6;
    const height = top + rows.length * pitch + 44;
    const x = scale(edges[0], edges[edges.length - 1], gutter, width - 12);
    const parts = rows.map((row, k) => {
      const floor = top + (k + 1) * pitch;
      const y = (value) => floor - (value / most) * pitch * 1.6;
      const d = steps(edges, shares[k], x, y);
      const short = row.name.length > letters ? `${row.name.slice(0, letters - 1)}…` : row.name;
      return draw(
        "g",
        {},
        draw("title", {}, `${row.name}: mean ${number(row.mean)}, ${counted(sum(row.counts), "sample")}`),
        draw("path", { class: "under", d }),
        draw("path", { class: "area ridge", d }),
        draw("line", { class: "axis", x1: gutter, x2: width - 12, y1: floor, y2: floor }),
        isNumber(row.mean)
          ? draw("line", { class: "mean", x1: x(row.mean), x2: x(row.mean), y1: floor - 9, y2: floor + 1 })
          : null,
        words(gutter - 8, floor - 3, short, "end", "name"),
      );
    });
    const label = `Histograms of ${rows.length} classes; the same numbers are in the table of classes.`;
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      ...parts,
      bottomAxis(x, edges, height - 44, width / 90, main),
    );
  });
}

function miniHistogram(edges, counts) {
  if (!counts?.length) return "";
  const x = scale(edges[0], edges[edges.length - 1], 0, 110);
  const y = scale(0, Math.max(...counts, 1), 25, 1);
  return draw(
    "svg",
    { class: "mini", viewBox: "0 0 110 26", width: 110, height: 26, "aria-hidden": "true" },
    draw("path", { class: "area ridge", d: steps(edges, counts, x, y) }),
  );
}

// A dot with its interval against the line of the whole.
function intervalScale(rows, overall) {
  const values = rows
    .flatMap((row) => [row.low, row.high, row.mean])
    .concat(overall)
    .filter(isNumber);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const room = (high - low || 1) * 0.06;
  return { low: low - room, high: high + room, x: scale(low - room, high + room, 6, 214) };
}

function intervalHead({ low, high, x }) {
  return draw(
    "svg",
    { class: "interval", viewBox: "0 0 220 16", width: 220, height: 16, "aria-hidden": "true" },
    ...ticks(low, high, 4).map(([value, text]) => words(x(value), 13, text, "middle")),
  );
}

function intervalRow({ x, low, high }, row, overall) {
  const grid = ticks(low, high, 4).map(([value]) =>
    draw("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: 26 }),
  );
  const kind = row.flag === "harder" ? "wrong" : row.flag === "easier" ? "right" : "other";
  const dot =
    row.flag === "harder"
      ? "M-5 4 0 -5 5 4Z"
      : row.flag === "easier"
        ? "M-5 -4 0 5 5 -4Z"
        : "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z";
  return draw(
    "svg",
    { class: `interval ${kind}`, viewBox: "0 0 220 26", width: 220, height: 26, "aria-hidden": "true" },
    ...grid,
    isNumber(overall) ? draw("line", { class: "overall", x1: x(overall), x2: x(overall), y1: 0, y2: 26 }) : null,
    isNumber(row.low) && isNumber(row.high)
      ? draw("line", { class: "span", x1: x(row.low), x2: x(row.high), y1: 13, y2: 13 })
      : null,
    isNumber(row.mean) ? draw("path", { class: "dot", d: dot, transform: `translate(${x(row.mean)} 13)` }) : null,
  );
}
