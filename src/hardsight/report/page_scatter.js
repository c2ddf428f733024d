// The scatter plot: the density of all samples, the drawn ones as points, and a brush. The base is drawn when the view,
// the filters, the theme or the size change; while a brush is dragged only the overlay is.

const NEAR = 12; // pixels within which the pointer hits a point

function makeScatter(report) {
  const { payload, samples, choice } = report;
  const { views } = payload;
  if (views.length === 0) return { view: () => null, redraw() {}, mark() {}, restore() {} };
  const [plot, base, overlay, tip] = ["plot", "plot-base", "plot-overlay", "tip"].map(find);
  let view = views[0];
  let frame = null; // where things are on the canvas: see `measure`
  let marked = -1;
  let drag = null;
  let pending = false;

  const fields = makeBrushFields(setBrush);
  const select = makeSelect(views.map(({ title }) => title), show, "view");
  find("view").replaceWith(select);
  find("clear-brush").addEventListener("click", () => setBrush(null));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && choice.brush && !report.dialogIsOpen()) setBrush(null);
  });
  overlay.addEventListener("pointerdown", start);
  overlay.addEventListener("pointermove", move);
  overlay.addEventListener("pointerup", finish);
  overlay.addEventListener("pointercancel", () => (drag = null));
  overlay.addEventListener("pointerleave", () => drag || hover(-1));
  new ResizeObserver(() => plot.clientWidth !== frame?.width && redraw()).observe(plot);

  // Another view has other axes, another note, other fields.
  function show(k) {
    view = views[k];
    setBrush(null);
    fields.use(view);
    find("view-note").textContent = visible(view.note);
    const [x, y] = [visible(view.x.title), visible(view.y.title)];
    base.setAttribute("aria-label", `Scatter plot of ${whole(samples.n)} points: ${x} to the right, ${y} upwards`);
    find("legend").replaceChildren(...legend(report, view));
    find("legend").classList.toggle("colorless", Boolean(view.color)); // there the signs differ in shape alone
    redraw();
    report.changed();
  }

  function redraw() {
    if (plot.clientWidth === 0) return;
    frame = measure(plot.clientWidth, view, samples);
    for (const canvas of [base, overlay]) {
      canvas.width = Math.round(frame.width * frame.ratio);
      canvas.height = Math.round(frame.height * frame.ratio);
      canvas.style.width = `${frame.width}px`;
      canvas.style.height = `${frame.height}px`;
    }
    find("plot-axes").replaceChildren(picture(frame.width, frame.height, "", ...frame.nodes));
    const context = base.getContext("2d");
    context.scale(frame.ratio, frame.ratio);
    drawDensity(context, frame, view);
    drawPoints(context, frame, samples, filtering(choice), samples.columns.get(view.color));
    drawOverlay();
  }

  function drawOverlay() {
    const context = overlay.getContext("2d");
    context.setTransform(frame.ratio, 0, 0, frame.ratio, 0, 0);
    context.clearRect(0, 0, frame.width, frame.height);
    if (choice.brush) drawBrush(context, frame, choice.brush);
    if (marked < 0 || Number.isNaN(frame.xs[marked])) return;
    context.strokeStyle = color("ink");
    context.lineWidth = 2.5;
    context.beginPath();
    context.arc(frame.xs[marked], frame.ys[marked], 9, 0, 2 * Math.PI);
    context.stroke();
  }

  // Many pointer events may come before the next frame; one answer per frame is enough.
  function soon() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      drawOverlay();
      report.rebrush();
    });
  }

  function setBrush(brush, typed = false) {
    const changed = brush || choice.brush;
    choice.brush = brush;
    if (!typed) fields.write(brush); // do not overwrite what is being typed
    find("clear-brush").disabled = !brush;
    if (changed) soon();
  }

  function pixel(event) {
    const box = overlay.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function start(event) {
    if (event.button !== 0) return;
    overlay.setPointerCapture(event.pointerId);
    const from = pixel(event);
    const box = choice.brush && frame.box(choice.brush);
    const inside = box && from.x >= box.left && from.x <= box.right && from.y >= box.top && from.y <= box.bottom;
    drag = { from, moved: false, box: inside ? box : null }; // a drag from inside moves the brush
    hover(-1);
    event.preventDefault();
  }

  function move(event) {
    const at = pixel(event);
    if (!drag) return hover(frame.nearest(at), at);
    const { from, box } = drag;
    drag.moved ||= Math.hypot(at.x - from.x, at.y - from.y) > 4;
    if (!drag.moved) return;
    const [[left, right], [top, bottom]] = ["x", "y"].map((axis) => [from[axis], at[axis]].sort((a, b) => a - b));
    setBrush(frame.brush(box ? shifted(box, at.x - from.x, at.y - from.y, frame.area) : { left, right, top, bottom }));
  }

  function finish(event) {
    const clicked = drag && !drag.moved;
    drag = null;
    if (!clicked) return;
    if (choice.brush) return setBrush(null);
    const i = frame.nearest(pixel(event));
    if (i >= 0) report.open(i, [i]);
  }

  function hover(i, at) {
    if (i !== marked) {
      marked = i;
      drawOverlay();
      if (i >= 0) tip.replaceChildren(...tipLines(report, view, i));
    }
    tip.hidden = i < 0;
    if (i < 0) return;
    const left = at.x > frame.width / 2 ? at.x - tip.offsetWidth - 14 : at.x + 14;
    tip.style.left = `${within(left, 0, Math.max(0, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${at.y > frame.height / 2 ? at.y - tip.offsetHeight - 10 : at.y + 10}px`;
  }

  show(0);
  return {
    view: () => view,
    redraw,
    // The view and the brush that an address names; they are drawn with the next `redraw`.
    restore(key, brush) {
      choice.brush = null;
      select.value = Math.max(0, views.findIndex((each) => each.key === key));
      show(Number(select.value));
      choice.brush = brush;
      fields.write(brush);
      find("clear-brush").disabled = !brush;
    },
    // Ring the point whose card has the pointer or the focus.
    mark(i) {
      marked = i;
      if (frame) drawOverlay();
    },
  };
}

// Sizes, scales and the pixel of every point. Values beyond an axis are drawn at its end, and a brush that reaches
// the end contains them.
function measure(width, { x, y }, samples) {
  const height = Math.round(within(width * 0.8, 280, 460));
  const { area, px, py, nodes } = axes({ width, height }, x, y);
  const across = (value) => within(px(value), area.left, area.right);
  const up = (value) => within(py(value), area.top, area.bottom);
  const [xs, ys] = [samples.columns.get(x.column).map(across), samples.columns.get(y.column).map(up)];
  for (let i = 0; i < xs.length; i++) if (Number.isNaN(xs[i] + ys[i])) xs[i] = ys[i] = NaN; // a point needs both
  // Bounds are rounded to what the fields show: the brush is exactly what they say.
  const digits = ({ low, high }) => within(3 - Math.floor(Math.log10(high - low || 1)), 0, 12);
  const xAt = (pixel) => Number(scale(area.left, area.right, x.low, x.high)(pixel).toFixed(digits(x)));
  const yAt = (pixel) => Number(scale(area.top, area.bottom, y.high, y.low)(pixel).toFixed(digits(y)));
  return {
    width,
    height,
    area,
    nodes,
    px,
    py,
    xs,
    ys,
    ratio: window.devicePixelRatio || 1,
    box: ({ x0, x1, y0, y1 }) => ({ left: across(x0), right: across(x1), top: up(y1), bottom: up(y0) }),
    brush: (box) => ({
      x0: box.left <= area.left ? -Infinity : xAt(box.left),
      x1: box.right >= area.right ? Infinity : xAt(box.right),
      y0: box.bottom >= area.bottom ? -Infinity : yAt(box.bottom),
      y1: box.top <= area.top ? Infinity : yAt(box.top),
    }),
    nearest(at) {
      let best = -1;
      let distance = NEAR * NEAR;
      for (let i = 0; i < xs.length; i++) {
        const d = (xs[i] - at.x) ** 2 + (ys[i] - at.y) ** 2;
        if (d < distance && samples.match[i]) [best, distance] = [i, d];
      }
      return best;
    },
  };
}

function shifted(box, dx, dy, area) {
  const x = within(dx, area.left - box.left, area.right - box.right);
  const y = within(dy, area.top - box.top, area.bottom - box.bottom);
  return { left: box.left + x, right: box.right + x, top: box.top + y, bottom: box.bottom + y };
}

function drawDensity(context, { px, py }, { x, y, density: { nx, ny, counts, max } }) {
  context.fillStyle = color("density");
  const edge = (axis, k, n) => axis.low + (k / n) * (axis.high - axis.low);
  counts.forEach((count, at) => {
    if (!count) return;
    const [column, row] = [at % nx, Math.floor(at / nx)];
    const [left, right] = [px(edge(x, column, nx)), px(edge(x, column + 1, nx))];
    const [top, bottom] = [py(edge(y, row + 1, ny)), py(edge(y, row, ny))];
    context.globalAlpha = 0.1 + 0.6 * (Math.log1p(count) / Math.log1p(max));
    context.fillRect(left, top, right - left, bottom - top);
  });
  context.globalAlpha = 1;
}

// Each sign is painted once and stamped: ten thousand stamps are cheaper than ten thousand paths.
function stamp(kind, radius, ratio, paint = kind) {
  const canvas = document.createElement("canvas");
  const half = Math.ceil(radius + 2);
  canvas.width = canvas.height = Math.ceil(2 * half * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.strokeStyle = color(paint);
  context.lineWidth = kind === "wrong" ? 1.8 : 1.4;
  context.beginPath();
  if (kind === "wrong") {
    context.moveTo(half - radius, half - radius);
    context.lineTo(half + radius, half + radius);
    context.moveTo(half + radius, half - radius);
    context.lineTo(half - radius, half + radius);
  } else context.arc(half, half, radius, 0, 2 * Math.PI);
  context.stroke();
  return { canvas, half };
}

// `shades` (from 0 to 1, one per sample) color the signs in steps; without them the kind of the sign does.
function drawPoints(context, { xs, ys, ratio }, samples, filtered, shades) {
  const size = samples.n > 4000 ? 0 : samples.n > 1200 ? 1 : 2;
  const radius = [2, 2.6, 3.4][size];
  const paints = shades ? SHADES : [undefined];
  const radii = { right: radius, wrong: radius + 0.6, plain: radius };
  const signs = KINDS.map((kind) => paints.map((paint) => stamp(kind, radii[kind], ratio, paint)));
  // Samples that do not match are pale and underneath; wrong ones, usually fewer, lie on top of right ones.
  for (const matching of filtered ? [0, 1] : [1]) {
    for (const kind of [UNJUDGED, RIGHT, WRONG]) {
      context.globalAlpha = !matching ? 0.1 : kind === WRONG ? 0.95 : [0.4, 0.6, 0.8][size];
      for (let i = 0; i < xs.length; i++) {
        if (samples.match[i] !== matching || samples.kind[i] !== kind || Number.isNaN(xs[i])) continue;
        const { canvas, half } = signs[kind][shades ? within(Math.floor(5 * (shades[i] || 0)), 0, 4) : 0];
        context.drawImage(canvas, xs[i] - half, ys[i] - half, 2 * half, 2 * half);
      }
    }
  }
  context.globalAlpha = 1;
}

function drawBrush(context, { area, box }, brush) {
  const { left, right, top, bottom } = box(brush);
  context.fillStyle = color("surface");
  context.globalAlpha = 0.6;
  context.beginPath();
  context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
  context.rect(left, top, right - left, bottom - top);
  context.fill("evenodd");
  context.globalAlpha = 1;
  context.strokeStyle = color("accent");
  context.lineWidth = 1.5;
  context.strokeRect(left, top, right - left, bottom - top);
}

function tipLines(report, view, i) {
  const { samples } = report;
  const value = (column) => number(samples.columns.get(column)[i]);
  const score = ({ column }) => make("span", `${scoreTitle(report.payload, column)} ${value(column)}`);
  const lines = samples.picture[i] >= 0 ? [thumbnail(report, i, "small")] : [];
  return [...lines, ...labelLines(report, i), score(view.x), score(view.y), named(samples.id[i], { class: "id" })];
}

function legend(report, view) {
  const { payload, samples } = report;
  const counts = [0, 0, 0];
  for (const kind of samples.kind) counts[kind]++;
  const titles = ["right", "wrong", payload.labeled ? "not judged" : "a sample"];
  const entry = (sign, text) => make("span.entry", sign, text);
  const entries = [RIGHT, WRONG, UNJUDGED]
    .filter((kind) => counts[kind] > 0)
    .map((kind) => entry(glyph(KINDS[kind]), `${titles[kind]} (${whole(counts[kind])} drawn)`));
  if (view.color) {
    const dots = SHADES.map((paint, k) => draw("circle", { cx: 7 + 13 * k, cy: 6, r: 4, stroke: `var(--${paint})` }));
    const text = `color: ${scoreTitle(payload, view.color)}, from 0 to 1 in fifths`;
    entries.push(entry(small("scale", 66, 12, ...dots), text));
  }
  const shades = [0.1, 0.25, 0.4, 0.55, 0.7].map((opacity, k) =>
    draw("rect.shade", { x: 9 * k, width: 9, height: 12, "fill-opacity": opacity }),
  );
  const text = `shading: all ${whole(payload.n)} samples, from 1 to ${whole(view.density.max)} in a cell (logarithmic)`;
  return [...entries, entry(small("ramp", 45, 12, ...shades), text)];
}

// The brush without a pointer: four numbers. An empty one leaves that side open.
function makeBrushFields(setBrush) {
  const open = { x0: -Infinity, x1: Infinity, y0: -Infinity, y1: Infinity };
  const field = (key) => make("input", { type: "number", step: "any", "data-testid": `brush-${key}`, input: read });
  const inputs = Object.fromEntries(Object.keys(open).map((key) => [key, field(key)]));
  const titles = { x: make("bdi"), y: make("bdi") };
  const ends = (axis) => [make("label", "from ", inputs[`${axis}0`]), make("label", "to ", inputs[`${axis}1`])];
  find("brush-fields").append(...["x", "y"].map((axis) => make("div.between", titles[axis], ends(axis))));

  function read() {
    const given = Object.entries(inputs).filter(([, input]) => Number.isFinite(input.valueAsNumber));
    const brush = Object.fromEntries(given.map(([key, input]) => [key, input.valueAsNumber]));
    setBrush(given.length ? { ...open, ...brush } : null, true);
  }

  return {
    use(view) {
      for (const axis of ["x", "y"]) {
        const { title, low, high } = view[axis];
        titles[axis].textContent = visible(title);
        for (const [end, name, value] of [["0", "from", low], ["1", "to", high]]) {
          inputs[axis + end].placeholder = Number(value.toPrecision(4));
          inputs[axis + end].setAttribute("aria-label", `${visible(title)}, ${name}`);
        }
      }
    },
    write(brush) {
      for (const [key, input] of Object.entries(inputs)) input.value = Number.isFinite(brush?.[key]) ? brush[key] : "";
    },
  };
}
