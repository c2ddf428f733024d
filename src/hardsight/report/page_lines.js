// Charts over the epochs, or over any other numbers: lines with bands, and bars. The pointer or the arrow keys read the
// numbers of one epoch.

const BANDS = 5; // with more lines only the one that is looked at shows its band

// marks(x, y, width): the nodes; read(k): what the tip says of the k-th epoch; dots(k): [value, class] of its marks.
function epochChart({ key, title, head, label, epochs, unit, low, high, kind, marks, read, dots, ...sizes }) {
  const { height = 220, room = 14, pad = 0, side = "", span } = sizes;
  const top = side ? 28 : 12; // what the y axis is called stands above it
  const canvas = make("div", { class: "canvas" });
  const tip = make("div", { class: "tip", role: "status", hidden: true, "data-testid": `tip-${key}` });
  const over = make("div", { class: "over" }, canvas, tip);
  const figure = make("figure", { "data-testid": `chart-${key}` }, make("figcaption", {}, named(title), head), over);
  const [first, last] = span ?? [epochs[0] - pad, epochs[epochs.length - 1] + pad];
  const write = (text) => (kind === "percent" ? `${text} %` : text);
  const factor = kind === "percent" ? 100 : 1;
  const writeAt = epochs.every(Number.isInteger) ? whole : number;
  let at = -1;

  function paint(width) {
    const gutter = 54;
    const floor = height - 42;
    const x = scale(first, last, gutter, width - room);
    const y = scale(low, high, floor, top);
    const rule = draw("line", { class: "rule", y1: top, y2: floor });
    const reading = draw("g", { class: "reading" }, rule);
    const hide = () => {
      at = -1;
      tip.hidden = true;
      reading.classList.remove("on");
    };
    const show = (k) => {
      if (k < 0 || k >= epochs.length) return;
      at = k;
      rule.setAttribute("x1", x(epochs[k]));
      rule.setAttribute("x2", x(epochs[k]));
      const points = dots(k)
        .filter(([value]) => isNumber(value))
        .map(([value, style]) => draw("circle", { class: `point ${style}`, cx: x(epochs[k]), cy: y(value), r: 3.5 }));
      reading.replaceChildren(rule, ...points);
      reading.classList.add("on");
      tip.replaceChildren(make("strong", {}, `${visible(unit)} ${writeAt(epochs[k])}`), ...read(k));
      tip.hidden = false;
      const left = x(epochs[k]) > width / 2 ? x(epochs[k]) - tip.offsetWidth - 10 : x(epochs[k]) + 10;
      tip.style.left = `${Math.max(0, Math.min(left, width - tip.offsetWidth))}px`;
      tip.style.top = "14px";
    };
    const nearest = (event) => {
      const pixel = event.clientX - svg.getBoundingClientRect().left;
      let best = 0;
      epochs.forEach((epoch, k) => {
        if (Math.abs(x(epoch) - pixel) < Math.abs(x(epochs[best]) - pixel)) best = k;
      });
      return best;
    };
    const svg = draw(
      "svg",
      {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        tabindex: 0,
        "aria-label": label,
        pointermove: (event) => show(nearest(event)),
        pointerdown: (event) => show(nearest(event)),
        pointerleave: (event) => event.pointerType === "touch" || hide(), // a lifted finger still wants to read
        blur: hide,
        keydown(event) {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (step) show(at < 0 ? (step > 0 ? 0 : epochs.length - 1) : at + step);
          else if (event.key === "Escape" && at >= 0) hide();
          else return;
          event.stopPropagation(); // the dialog turns its pages with the same keys
          event.preventDefault();
        },
      },
      side ? words(0, 12, visible(side), "start", "title") : null,
      ...ticks(low * factor, high * factor, 5).map(([value, text]) =>
        draw(
          "g",
          {},
          draw("line", { class: "grid", x1: gutter, x2: width - room, y1: y(value / factor), y2: y(value / factor) }),
          words(gutter - 6, y(value / factor) + 4, write(text), "end"),
        ),
      ),
      ...marks(x, y, width),
      epochAxis(x, epochs, floor, (width - gutter - room) / 60, visible(unit), [first, last]),
      reading,
    );
    return svg;
  }
  return { figure, start: () => drawnToWidth(canvas, paint) };
}

// Where all are whole numbers, as epochs are, so are the marks.
function epochAxis(x, epochs, y, count, title, [first, last]) {
  const [low, high] = [Math.min(first, epochs[0]), Math.max(last, epochs[epochs.length - 1])];
  const isWhole = epochs.every(Number.isInteger);
  const most = isWhole ? Math.min(count, Math.max(high - low, 1)) : count;
  const marks = ticks(low, high, most).filter(([value]) => !isWhole || Number.isInteger(value));
  return draw(
    "g",
    {},
    draw("line", { class: "axis", x1: x(first), x2: x(last), y1: y, y2: y }),
    ...marks.map(([value, text]) =>
      draw(
        "g",
        {},
        draw("line", { class: "axis", x1: x(value), x2: x(value), y1: y, y2: y + 5 }),
        words(x(value), y + 18, text, "middle"),
      ),
    ),
    words((x(first) + x(last)) / 2, y + 35, title, "middle", "title"),
  );
}

// lines: {name, style, values, low?, high?, faint?}; ends of bands may lie where no value can, and are cut there.
// diagonal: both axes from 0 to 1, and the line where they say the same; whole: the y axis alone; join: lines go on over numbers that are missing.
function linesChart({ key, title, head, epochs, unit, kind, lines, least, most, mark, write, ends = false, ...more }) {
  const cut = (value) => Math.max(least ?? -Infinity, Math.min(most ?? Infinity, value));
  const banded = lines.filter((line) => line.low);
  const inside = lines.length <= BANDS ? banded.flatMap((line) => [...line.low, ...line.high]) : [];
  const known = [...lines.flatMap((line) => line.values), ...inside.filter(isNumber).map(cut)].filter(isNumber);
  let [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
  const air = 0.04 * (high - low);
  [low, high] = [cut(low - air), cut(high + air)];
  if (low > 0 && low < 0.35 * high) low = 0;
  if (more.diagonal || more.whole) [low, high] = [0, 1];
  const marked = isNumber(mark) && mark > low && mark < high;
  const names = lines.map((line) => `${visible(line.name)} ${write(lastOf(line.values))}`);
  const shown = names.length > 6 ? [...names.slice(0, 6), "…"] : names;
  return epochChart({
    key,
    title,
    head,
    epochs,
    unit,
    low,
    high,
    kind,
    height: more.height,
    side: more.side,
    span: more.diagonal ? [0, 1] : undefined,
    room: ends ? 120 : 14,
    label: `${visible(title)} by ${visible(unit)}; at the last: ${shown.join(", ")}. Arrow keys read the others.`,
    marks: (x, y, width) => [
      marked ? across("chance", epochs[0], epochs.at(-1), mark, x, y) : null,
      more.diagonal ? draw("line", { class: "chance", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }) : null,
      ...lines.map((line) =>
        draw(
          "g",
          { class: `series ${line.style}${lines.length > BANDS ? " many" : ""}`, "data-line": line.k },
          line.low ? draw("path", { class: "band", d: bandPath(epochs, line, x, y, cut, [low, high], more.join) }) : null,
          draw("path", { class: "curve", d: linePath(epochs, line.values, x, y, more.join) }),
          ...(more.join ? everyPoint : alone)(epochs, line.values, x, y),
        ),
      ),
      ...(ends ? endNames(lines, y, width - 120, y(low)) : []),
    ],
    dots: (k) => lines.map((line) => [line.values[k], line.style]),
    read: (k) =>
      lines
        .filter((line) => isNumber(line.values[k]))
        .sort((a, b) => b.values[k] - a.values[k])
        .map((line) => tipEntry(lineSwatch(line.style), line.name, line.tell?.(k) ?? write(line.values[k]))),
  });
}

const across = (kind, from, to, at, x, y) =>
  draw("line", { class: kind, x1: x(from), x2: x(to), y1: y(at), y2: y(at) });

const tipEntry = (sign, name, text) => make("span", { class: "entry" }, sign, named(name), ` ${text}`);

const lastOf = (values) => values.findLast(isNumber);

// A gap in the numbers is a gap in the line, unless it is joined.
function linePath(epochs, values, x, y, join = false) {
  let d = "";
  let pen = false;
  values.forEach((value, k) => {
    if (isNumber(value)) d += `${pen ? "L" : "M"}${x(epochs[k]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = isNumber(value) || (pen && join);
  });
  return d;
}

// A number between two gaps has no line; it is a dot.
function alone(epochs, values, x, y) {
  return values
    .map((value, k) => [value, k])
    .filter(([value, k]) => isNumber(value) && !isNumber(values[k - 1]) && !isNumber(values[k + 1]))
    .map(([value, k]) => draw("circle", { class: "point", cx: x(epochs[k]), cy: y(value), r: 2.5 }));
}

const everyPoint = (epochs, values, x, y) => values.flatMap((value, k) => alone([epochs[k]], [value], x, y));

function bandPath(epochs, line, x, y, cut, [low, high], join = false) {
  const at = (k, value) => `${x(epochs[k]).toFixed(1)} ${y(Math.max(low, Math.min(high, cut(value)))).toFixed(1)}`;
  let d = "";
  let run = [];
  const close = () => {
    const above = run.map((k) => at(k, line.high[k]));
    const below = run.map((k) => at(k, line.low[k])).reverse();
    if (run.length > 1) d += `M${[...above, ...below].join("L")}Z`;
    run = [];
  };
  epochs.forEach((_, k) => (isNumber(line.low[k]) && isNumber(line.high[k]) ? run.push(k) : join || close()));
  close();
  return d;
}

// Names at the ends of their lines, moved apart where they would lie on one another, upwards where they would leave.
function endNames(lines, y, left, floor) {
  const placed = lines
    .filter((line) => isNumber(lastOf(line.values)))
    .map((line) => ({ line, at: y(lastOf(line.values)) }))
    .sort((a, b) => a.at - b.at);
  placed.forEach((one, k) => (one.at = Math.max(one.at, k ? placed[k - 1].at + 14 : 0)));
  placed.reverse().forEach((one, k) => (one.at = Math.min(one.at, k ? placed[k - 1].at - 14 : floor)));
  return placed.map(({ line, at }) => {
    const name = visible(line.name);
    const short = name.length > 16 ? `${name.slice(0, 15)}…` : name;
    return draw("g", { class: line.style }, words(left + 8, at + 4, short, "start", "end"));
  });
}

const lineSwatch = (style) =>
  draw(
    "svg",
    { class: `swatch series ${style}`, viewBox: "0 0 22 12", width: 22, height: 12, "aria-hidden": "true" },
    draw("path", { class: "curve", d: "M1 6H21" }),
  );

// A line's name as a button: pressed, the line is shown; looked at, it stands out among the lines of a box.
function lineKey(line, box, shown, toggle) {
  const stress = (on) => {
    for (const node of box.querySelectorAll(".series[data-line]")) {
      const own = node.dataset.line === String(line.k);
      node.classList.toggle("strong", on && own);
      node.classList.toggle("faint", on && !own);
    }
  };
  return make(
    "button",
    {
      type: "button",
      class: "quiet key",
      "aria-pressed": String(shown),
      "data-testid": "curve-line",
      click: toggle,
      pointerenter: () => stress(true),
      pointerleave: () => stress(false),
      focus: () => stress(true),
      blur: () => stress(false),
    },
    lineSwatch(line.style),
    named(line.name),
  );
}

// Two parts of a change, one on the other, above and below zero, with their sum as a dot.
function barsChart({ key, title, head, epochs, unit, parts, total, write }) {
  const sums = epochs.map((_, k) => {
    const own = parts.map((part) => part.values[k]).filter(isNumber);
    return [sum(own.filter((value) => value < 0)), sum(own.filter((value) => value > 0))];
  });
  const [low, high] = [Math.min(...sums.map((pair) => pair[0]), 0), Math.max(...sums.map((pair) => pair[1]), 0)];
  const air = 0.05 * (high - low || 1);
  const step = epochs.length > 1 ? Math.min(...epochs.slice(1).map((epoch, k) => epoch - epochs[k])) : 1;
  return epochChart({
    key,
    title,
    head,
    epochs,
    unit,
    low: low < 0 ? low - air : 0,
    high: high > 0 || low === 0 ? high + air : 0,
    pad: step / 2,
    label: `${visible(title)}; the same numbers are in the table below. Arrow keys read them.`,
    marks: (x, y) => [
      ...epochs.flatMap((epoch, k) => {
        const ends = { below: 0, above: 0 };
        return parts
          .filter((part) => isNumber(part.values[k]))
          .map((part) => {
            const side = part.values[k] < 0 ? "below" : "above";
            const from = ends[side];
            ends[side] += part.values[k];
            const [top, bottom] = [Math.min(y(from), y(ends[side])), Math.max(y(from), y(ends[side]))];
            const width = Math.max(1, (x(epoch + step) - x(epoch)) * 0.76);
            const box = { x: x(epoch) - width / 2, y: top, width, height: Math.max(bottom - top, 0) };
            return draw("rect", { class: `bar ${part.style}`, ...box });
          });
      }),
      across("axis", epochs[0] - step / 2, epochs.at(-1) + step / 2, 0, x, y),
      draw("path", { class: "curve total", d: linePath(epochs, total, x, y) }),
    ],
    dots: (k) => [[total[k], "total"]],
    read: (k) => [
      ...parts.map((part) => tipEntry(barSwatch(part.style), part.name, write(part.values[k]))),
      tipEntry(lineSwatch("total"), "together", write(total[k])),
    ],
  });
}

const barSwatch = (style) =>
  draw(
    "svg",
    { class: "swatch", viewBox: "0 0 16 12", "aria-hidden": "true" },
    draw("rect", { class: `bar ${style}`, x: 1, y: 1, width: 14, height: 10 }),
  );
