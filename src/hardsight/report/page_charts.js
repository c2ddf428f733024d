// Charts as SVG: the axes of every chart, histograms, and intervals in the rows of a table.

// Draw for the available width, and again when it changes: text in a scaled drawing would become unreadable.
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

// Charts can be drawn once they are in the page: {figure, start}.
function place(box, charts) {
  box.replaceChildren(...charts.map(({ figure }) => figure));
  for (const { start } of charts) start();
}

function scale(low, high, from, to) {
  const width = high > low ? high - low : 1;
  return (value) => from + ((value - low) / width) * (to - from);
}

// About `count` round numbers between low and high, each with its text: [value, text] pairs.
function ticks(low, high, count = 5) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [[low, number(low)]];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const digits = step < 1 ? Math.min(9, Math.ceil(-Math.log10(step) - 1e-9)) : 0;
  const text = (value) => (step >= 1000 ? `${Number((value / 1000).toPrecision(4))}k` : value.toFixed(digits));
  const marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    marks.push([k * step, text(k * step).replace("-", "−")]);
  return marks;
}

const svgText = (x, y, text, anchor, style) => draw("text", { x, y, "text-anchor": anchor, class: style }, text);
const svgLine = (style, x1, y1, x2, y2) => draw("line", { class: style, x1, y1, x2, y2 });

// The axes of a chart: {low, high, title, whole, percent} for x and for y; without y there is the bottom axis alone.
// Returns the area in pixels, the scales, and the nodes.
function axes({ width, height, left = 54, right = 14 }, x, y) {
  const area = { left, right: width - right, top: y?.title ? 28 : 12, bottom: height - (x.title ? 42 : 26) };
  const px = scale(x.low, x.high, area.left, area.right);
  const py = y && scale(y.low, y.high, area.bottom, area.top);
  const factor = y?.percent ? 100 : 1;
  const count = (area.right - area.left) / 70;
  const marks = ticks(x.low, x.high, x.whole ? Math.min(count, Math.max(x.high - x.low, 1)) : count);
  const nodes = [
    ...(y ? ticks(y.low * factor, y.high * factor, (area.bottom - area.top) / 36) : []).flatMap(([value, text]) => [
      svgLine("grid", area.left, py(value / factor), area.right, py(value / factor)),
      svgText(area.left - 6, py(value / factor) + 4, y.percent ? `${text}%` : text, "end"),
    ]),
    svgLine("axis", area.left, area.bottom, area.right, area.bottom),
    ...marks.filter(([value]) => !x.whole || Number.isInteger(value)).flatMap(([value, text]) => [
      svgLine("axis", px(value), area.bottom, px(value), area.bottom + 5),
      svgText(px(value), area.bottom + 18, text, "middle"),
    ]),
  ];
  if (y?.title) nodes.push(svgText(0, 12, visible(y.title), "start", "title"));
  if (x.title) nodes.push(svgText((area.left + area.right) / 2, area.bottom + 36, visible(x.title), "middle", "title"));
  return { area, px, py, nodes };
}

const picture = (width, height, label, ...nodes) =>
  draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...nodes);

// The outline of a histogram as steps.
function steps(edges, heights, x, y) {
  let d = `M${x(edges[0]).toFixed(1)} ${y(0).toFixed(1)}`;
  heights.forEach((height, k) => (d += `V${y(height).toFixed(1)}H${x(edges[k + 1]).toFixed(1)}`));
  return `${d}V${y(0).toFixed(1)}`;
}

const small = (style, width, height, ...nodes) =>
  draw("svg", { class: style, viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...nodes);
const areaSwatch = (kind) => small("swatch", 16, 12, draw("path", { class: `area ${kind}`, d: "M1 11V3H15V11" }));
const lineSwatch = (style) => small(`swatch series ${style}`, 22, 12, draw("path.curve", { d: "M1 6H21" }));
const barSwatch = (style) =>
  small("swatch", 16, 12, draw("rect", { class: `bar ${style}`, x: 1, y: 1, width: 14, height: 10 }));

// entries: [swatch, name] pairs.
const legendOf = (entries) => make("span.legend", entries.map(([sign, name]) => make("span.entry", sign, named(name))));

function miniHistogram(edges, counts) {
  const x = scale(edges[0], edges.at(-1), 0, 110);
  const y = scale(0, Math.max(...counts, 1), 25, 1);
  return small("mini", 110, 26, draw("path", { class: "area ridge", d: steps(edges, counts, x, y) }));
}

// A column of a table: a dot with its interval in each row ({mean, low, high, flag}), and a dashed line for `overall`.
function intervalColumn(rows, overall, what) {
  const values = rows.flatMap((row) => [row.low, row.high, row.mean]).concat(overall).filter(isNumber);
  const [least, most] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const air = (most - least || 1) * 0.06;
  const x = scale(least - air, most + air, 6, 214);
  const marks = ticks(least - air, most + air, 4);
  const dots = { harder: ["wrong", "M-5 4 0 -5 5 4Z"], easier: ["right", "M-5 -4 0 5 5 -4Z"] };
  const interval = (row) => {
    const [kind, dot] = dots[row.flag] ?? ["other", "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z"];
    return small(
      `interval ${kind}`,
      220,
      26,
      ...marks.map(([value]) => svgLine("grid", x(value), 0, x(value), 26)),
      isNumber(overall) && svgLine("overall", x(overall), 0, x(overall), 26),
      isNumber(row.low) && isNumber(row.high) && svgLine("span", x(row.low), 13, x(row.high), 13),
      isNumber(row.mean) && draw("path.dot", { d: dot, transform: `translate(${x(row.mean)} 13)` }),
    );
  };
  const head = small("interval", 220, 16, ...marks.map(([value, text]) => svgText(x(value), 13, text, "middle")));
  return { key: "chart", title: isNumber(overall) ? `dashed: ${what}, ${number(overall)}` : "", head, interval };
}
