// The scatter: all samples as shading, the drawn ones as points, and a brush. The base is drawn when the view, the
// filters, the theme or the size change; while a brush is dragged only the overlay is.

const NEAR = 12; // pixels within which a point is meant by the pointer

function makeScatter(report) {
  const { payload, samples, choice } = report;
  const views = payload.views.filter(
    (view) => samples.columns.has(view.x.column) && samples.columns.has(view.y.column),
  );
  if (views.length === 0) {
    find("plot")?.parentElement.replaceChildren(
      make("p", { class: "note" }, "There is no scatter: its scores are not on this page."),
    );
    return { view: () => null, redraw() {}, mark() {} };
  }

  const plot = find("plot");
  const base = find("plot-base");
  const overlay = find("plot-overlay");
  const select = find("view");
  select.append(...views.map((view, k) => make("option", { value: k }, visible(view.title))));
  let view = views[0];
  let frame = null; // where things are on the canvas: made by `measure`
  let marked = -1;
  let drag = null;
  let pending = false;

  const fields = makeBrushFields(setBrush);
  select.addEventListener("change", () => {
    view = views[Number(select.value)];
    setBrush(null);
    renew();
  });
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

  // A new view: other axes, another note, other fields.
  function renew() {
    fields.use(view);
    find("view-note").textContent = visible(view.note ?? "");
    const [x, y] = [visible(view.x.title), visible(view.y.title)];
    base.setAttribute("aria-label", `Scatter of ${whole(samples.n)} points: ${x} to the right, ${y} upwards`);
    find("legend").replaceChildren(...legend(report, view));
    find("legend").classList.toggle("colourless", samples.columns.has(view.colour)); // signs tell shapes alone
    redraw();
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
    const context = base.getContext("2d");
    context.scale(frame.ratio, frame.ratio);
    drawDensity(context, frame, view);
    drawAxes(context, frame, view);
    drawPoints(context, frame, samples, filtering(choice), samples.columns.get(view.colour));
    drawOverlay();
  }

  function drawOverlay() {
    const context = overlay.getContext("2d");
    context.setTransform(frame.ratio, 0, 0, frame.ratio, 0, 0);
    context.clearRect(0, 0, frame.width, frame.height);
    if (choice.brush) drawBrush(context, frame, choice.brush);
    if (marked >= 0 && frame.px[marked] === frame.px[marked]) {
      context.strokeStyle = colour("ink");
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(frame.px[marked], frame.py[marked], 9, 0, 2 * Math.PI);
      context.stroke();
    }
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
    const same = !brush && !choice.brush;
    choice.brush = brush;
    if (!typed) fields.write(brush); // what is being typed is not rewritten
    find("clear-brush").disabled = !brush;
    if (!same) soon();
  }

  function place(event) {
    const box = overlay.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function start(event) {
    if (event.button !== 0) return;
    overlay.setPointerCapture(event.pointerId);
    const from = place(event);
    // A drag that starts inside the brush moves it.
    drag = {
      from,
      moved: false,
      box: choice.brush && insideBox(frame.box(choice.brush), from) ? frame.box(choice.brush) : null,
    };
    hover(-1);
    event.preventDefault();
  }

  function move(event) {
    const at = place(event);
    if (!drag) return hover(frame.nearest(at), at);
    const dx = at.x - drag.from.x;
    const dy = at.y - drag.from.y;
    drag.moved ||= Math.hypot(dx, dy) > 4;
    if (!drag.moved) return;
    if (drag.box) setBrush(frame.brush(shifted(drag.box, dx, dy, frame)));
    else
      setBrush(
        frame.brush({
          left: Math.min(drag.from.x, at.x),
          right: Math.max(drag.from.x, at.x),
          top: Math.min(drag.from.y, at.y),
          bottom: Math.max(drag.from.y, at.y),
        }),
      );
  }

  function finish(event) {
    const clicked = drag && !drag.moved;
    drag = null;
    if (!clicked) return;
    if (choice.brush) return setBrush(null);
    const i = frame.nearest(place(event));
    if (i >= 0) report.open(i, [i]);
  }

  function hover(i, at) {
    const tip = find("tip");
    if (i !== marked) {
      marked = i;
      drawOverlay();
      if (i >= 0) tip.replaceChildren(...tipLines(report, view, i));
    }
    tip.hidden = i < 0;
    if (i < 0) return;
    const left = at.x > frame.width / 2 ? at.x - tip.offsetWidth - 14 : at.x + 14;
    tip.style.left = `${Math.max(0, Math.min(left, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${at.y > frame.height / 2 ? at.y - tip.offsetHeight - 10 : at.y + 10}px`;
  }

  renew();
  return {
    view: () => view,
    redraw,
    // Ring the point whose card is looked at.
    mark(i) {
      marked = i;
      if (frame) drawOverlay();
    },
  };
}

// Sizes, scales and the pixel of every point. Values beyond an axis are drawn at its end, and a brush that reaches
// the end takes them with it.
function measure(width, view, samples) {
  const height = Math.round(Math.max(280, Math.min(460, width * 0.8)));
  const area = { left: 54, right: width - 12, top: 12, bottom: height - 46 };
  const [x, y] = [view.x, view.y].map(({ low, high }) =>
    high > low ? { low, high } : { low: low - 0.5, high: low + 0.5 },
  );
  const across = (value) => area.left + ((value - x.low) / (x.high - x.low)) * (area.right - area.left);
  const up = (value) => area.bottom - ((value - y.low) / (y.high - y.low)) * (area.bottom - area.top);
  const within = (value, low, high) => Math.max(low, Math.min(high, value));
  const px = Float32Array.from(samples.columns.get(view.x.column), (value) =>
    within(across(value), area.left, area.right),
  );
  const py = Float32Array.from(samples.columns.get(view.y.column), (value) => within(up(value), area.top, area.bottom));
  for (let i = 0; i < px.length; i++) if (px[i] !== px[i] || py[i] !== py[i]) px[i] = py[i] = NaN; // it takes both
  // Bounds are rounded to what the fields show: the brush is what it says.
  const rounded = (value, axis) => Number(value.toFixed(fieldDigits(axis)));
  const xAt = (pixel) => rounded(x.low + ((pixel - area.left) / (area.right - area.left)) * (x.high - x.low), x);
  const yAt = (pixel) => rounded(y.low + ((area.bottom - pixel) / (area.bottom - area.top)) * (y.high - y.low), y);
  return {
    width,
    height,
    area,
    px,
    py,
    x,
    y,
    across,
    up,
    ratio: window.devicePixelRatio || 1,
    box: (brush) => ({
      left: within(across(brush.x0), area.left, area.right),
      right: within(across(brush.x1), area.left, area.right),
      top: within(up(brush.y1), area.top, area.bottom),
      bottom: within(up(brush.y0), area.top, area.bottom),
    }),
    brush: (box) => ({
      x0: box.left <= area.left ? -Infinity : xAt(box.left),
      x1: box.right >= area.right ? Infinity : xAt(box.right),
      y0: box.bottom >= area.bottom ? -Infinity : yAt(box.bottom),
      y1: box.top <= area.top ? Infinity : yAt(box.top),
    }),
    nearest(at) {
      let best = -1;
      let distance = NEAR * NEAR;
      for (let i = 0; i < px.length; i++) {
        const d = (px[i] - at.x) ** 2 + (py[i] - at.y) ** 2;
        if (d < distance && samples.match[i]) [best, distance] = [i, d];
      }
      return best;
    },
  };
}

const fieldDigits = ({ low, high }) => Math.max(0, Math.min(12, 3 - Math.floor(Math.log10(high - low || 1))));
const insideBox = (box, at) => at.x >= box.left && at.x <= box.right && at.y >= box.top && at.y <= box.bottom;

function shifted(box, dx, dy, { area }) {
  const x = Math.max(area.left - box.left, Math.min(area.right - box.right, dx));
  const y = Math.max(area.top - box.top, Math.min(area.bottom - box.bottom, dy));
  return { left: box.left + x, right: box.right + x, top: box.top + y, bottom: box.bottom + y };
}

function drawDensity(context, { area, across, up, x, y }, view) {
  context.fillStyle = colour("surface");
  context.fillRect(area.left, area.top, area.right - area.left, area.bottom - area.top);
  const { nx, ny, counts } = view.density ?? {};
  if (!counts?.length) return;
  const most = view.density.max || counts.reduce((a, b) => Math.max(a, b), 1);
  context.fillStyle = colour("density");
  for (let row = 0; row < ny; row++) {
    const top = up(y.low + ((row + 1) / ny) * (y.high - y.low));
    const bottom = up(y.low + (row / ny) * (y.high - y.low));
    for (let column = 0; column < nx; column++) {
      const count = counts[row * nx + column];
      if (!count) continue;
      const left = across(x.low + (column / nx) * (x.high - x.low));
      const right = across(x.low + ((column + 1) / nx) * (x.high - x.low));
      context.globalAlpha = 0.1 + 0.6 * (Math.log1p(count) / Math.log1p(most));
      context.fillRect(left, top, right - left, bottom - top);
    }
  }
  context.globalAlpha = 1;
}

function drawAxes(context, { area, across, up, x, y }, view) {
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.strokeStyle = colour("line");
  context.fillStyle = colour("soft");
  context.lineWidth = 1;
  context.strokeRect(area.left + 0.5, area.top + 0.5, area.right - area.left - 1, area.bottom - area.top - 1);
  const xs = ticks(x.low, x.high, (area.right - area.left) / 80);
  const ys = ticks(y.low, y.high, (area.bottom - area.top) / 60);
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const [value, text] of xs) {
    context.fillRect(Math.round(across(value)), area.bottom, 1, 5);
    context.fillText(text, across(value), area.bottom + 8);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const [value, text] of ys) {
    context.fillRect(area.left - 5, Math.round(up(value)), 5, 1);
    context.fillText(text, area.left - 8, up(value));
  }
  context.fillStyle = colour("ink");
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.fillText(visible(view.x.title), (area.left + area.right) / 2, area.bottom + 44, area.right - area.left);
  context.save();
  context.translate(14, (area.top + area.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(visible(view.y.title), 0, 0, area.bottom - area.top);
  context.restore();
}

// Each sign is painted once and stamped: ten thousand stamps are cheaper than ten thousand paths.
function stamp(kind, radius, ratio, paint = kind) {
  const canvas = document.createElement("canvas");
  const half = Math.ceil(radius + 2);
  canvas.width = canvas.height = Math.ceil(2 * half * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.strokeStyle = colour(paint);
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

// `shades` (from 0 to 1, one a sample) colour the signs in steps; without them the sign alone does.
function drawPoints(context, { px, py, ratio }, samples, filtered, shades) {
  const radius = samples.n > 4000 ? 2 : samples.n > 1200 ? 2.6 : 3.4;
  const paints = shades ? SHADES : [undefined];
  const signs = KINDS.map((kind) =>
    paints.map((paint) => stamp(kind, kind === "wrong" ? radius + 0.6 : radius, ratio, paint)),
  );
  // What does not match lies underneath and pale; the wrong, fewer as a rule, lie on top of the right.
  for (const matching of filtered ? [0, 1] : [1]) {
    for (const kind of [UNJUDGED, RIGHT, WRONG]) {
      context.globalAlpha = matching
        ? kind === WRONG
          ? 0.95
          : samples.n > 4000
            ? 0.4
            : samples.n > 1200
              ? 0.6
              : 0.8
        : 0.1;
      for (let i = 0; i < px.length; i++) {
        if (samples.match[i] !== matching || samples.kind[i] !== kind || px[i] !== px[i]) continue;
        const { canvas, half } = signs[kind][shades ? shadeOf(shades[i]) : 0];
        context.drawImage(canvas, px[i] - half, py[i] - half, 2 * half, 2 * half);
      }
    }
  }
  context.globalAlpha = 1;
}

function drawBrush(context, frame, brush) {
  const { area } = frame;
  const box = frame.box(brush);
  context.fillStyle = colour("surface");
  context.globalAlpha = 0.6;
  context.beginPath();
  context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
  context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  context.fill("evenodd");
  context.globalAlpha = 1;
  context.strokeStyle = colour("accent");
  context.lineWidth = 1.5;
  context.strokeRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
}

function tipLines(report, view, i) {
  const { samples } = report;
  const score = (axis) =>
    make("span", {}, `${scoreTitle(report.payload, axis.column)} ${number(samples.columns.get(axis.column)[i])}`);
  const lines = [samples.picture[i] >= 0 ? picture(report, i, "small") : null];
  if (samples.label[i] >= 0) lines.push(line("labelled", report.className(samples.label[i])));
  lines.push(line("predicted", report.className(samples.pred[i]), KINDS[samples.kind[i]]));
  lines.push(score(view.x), score(view.y), named(samples.id[i], { class: "id" }));
  return lines.filter(Boolean);
}

function legend(report, view) {
  const { payload, samples } = report;
  const counts = [0, 0, 0];
  for (const kind of samples.kind) counts[kind]++;
  const titles = ["right", "wrong", payload.labelled ? "not judged" : "a sample"];
  const entry = (sign, text) => make("span", { class: "entry" }, sign, text);
  const entries = [RIGHT, WRONG, UNJUDGED]
    .filter((kind) => counts[kind] > 0)
    .map((kind) => entry(glyph(KINDS[kind]), `${titles[kind]} (${whole(counts[kind])} drawn)`));
  if (samples.columns.has(view.colour)) {
    const dots = SHADES.map((paint, k) => draw("circle", { cx: 7 + 13 * k, cy: 6, r: 4, stroke: `var(--${paint})` }));
    const text = `colour: ${scoreTitle(payload, view.colour)}, from 0 to 1 in fifths`;
    entries.push(entry(draw("svg", { class: "scale", viewBox: "0 0 66 12", "aria-hidden": "true" }, ...dots), text));
  }
  if (view.density?.counts?.length) {
    const steps = [0.1, 0.25, 0.4, 0.55, 0.7].map((opacity, k) =>
      draw("rect", { class: "shade", x: 9 * k, width: 9, height: 12, "fill-opacity": opacity }),
    );
    const most = view.density.max || view.density.counts.reduce((a, b) => Math.max(a, b), 1);
    const text = `shading: all ${whole(payload.n)} samples, from 1 to ${whole(most)} in a cell (logarithmic)`;
    entries.push(entry(draw("svg", { class: "ramp", viewBox: "0 0 45 12", "aria-hidden": "true" }, ...steps), text));
  }
  return entries;
}

// The brush without a pointer: four numbers. An empty one leaves that side open.
function makeBrushFields(setBrush) {
  const keys = ["x0", "x1", "y0", "y1"];
  const open = { x0: -Infinity, x1: Infinity, y0: -Infinity, y1: Infinity };
  const inputs = Object.fromEntries(
    keys.map((key) => [
      key,
      make("input", { type: "number", step: "any", "data-testid": `brush-${key}`, input: read }),
    ]),
  );
  const titles = { x: make("bdi"), y: make("bdi") };
  for (const axis of ["x", "y"]) {
    find("brush-fields").append(
      make(
        "div",
        { class: "between" },
        titles[axis],
        make("label", {}, "from ", inputs[`${axis}0`]),
        make("label", {}, "to ", inputs[`${axis}1`]),
      ),
    );
  }

  function read() {
    const given = keys.filter((key) => inputs[key].value !== "" && Number.isFinite(inputs[key].valueAsNumber));
    const brush = { ...open };
    for (const key of given) brush[key] = inputs[key].valueAsNumber;
    setBrush(given.length ? brush : null, true);
  }

  return {
    use(view) {
      for (const axis of ["x", "y"]) {
        titles[axis].textContent = visible(view[axis].title);
        inputs[`${axis}0`].placeholder = Number(view[axis].low.toPrecision(4));
        inputs[`${axis}1`].placeholder = Number(view[axis].high.toPrecision(4));
        inputs[`${axis}0`].setAttribute("aria-label", `${visible(view[axis].title)}, from`);
        inputs[`${axis}1`].setAttribute("aria-label", `${visible(view[axis].title)}, to`);
      }
      this.write(null);
    },
    write(brush) {
      for (const key of keys) {
        const value = brush?.[key];
        inputs[key].value = Number.isFinite(value) ? String(value) : "";
      }
    },
  };
}
