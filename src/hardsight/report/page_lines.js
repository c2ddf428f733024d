// Charts over the epochs, or over any other numbers: lines with bands, and bars. The pointer or the arrow keys read the
// numbers of one epoch.

const BANDS = 5; // with more lines only the highlighted one shows its band

// x, y: the axes; epochs: the values of x; marks(px, py, area): the nodes; read(k): the tip of the k-th epoch;
// dots(k): [value, class] of its marks.
function epochChart({ key, title, head, label, epochs, x, y, marks, read, dots, height = 220, right = 14 }) {
  const canvas = make("div.canvas");
  const tip = make("div.tip", { role: "status", hidden: true, "data-testid": `tip-${key}` });
  const caption = make("figcaption", named(title), head);
  const figure = make("figure", { "data-testid": `chart-${key}` }, caption, make("div.over", canvas, tip));
  const isWhole = epochs.every(Number.isInteger);
  let at = -1;

  function paint(width) {
    const { area, px, py, nodes } = axes({ width, height, right }, { ...x, whole: isWhole }, y);
    const reading = draw("g.reading");
    const hide = () => {
      at = -1;
      tip.hidden = true;
      reading.classList.remove("on");
    };
    const show = (k) => {
      if (k < 0 || k >= epochs.length) return;
      at = k;
      const cx = px(epochs[k]);
      const points = dots(k).filter(([value]) => isNumber(value));
      const circle = ([value, style]) => draw("circle", { class: `point ${style}`, cx, cy: py(value), r: 3.5 });
      reading.replaceChildren(svgLine("rule", cx, area.top, cx, area.bottom), ...points.map(circle));
      reading.classList.add("on");
      const name = `${visible(x.title)} ${(isWhole ? whole : number)(epochs[k])}`;
      tip.replaceChildren(make("strong", name), ...read(k));
      tip.hidden = false;
      const left = cx > width / 2 ? cx - tip.offsetWidth - 10 : cx + 10;
      tip.style.left = `${Math.max(0, Math.min(left, width - tip.offsetWidth))}px`;
      tip.style.top = "14px";
    };
    const point = (event) => {
      const pixel = event.clientX - svg.getBoundingClientRect().left;
      const distance = epochs.map((epoch) => Math.abs(px(epoch) - pixel));
      show(distance.indexOf(Math.min(...distance)));
    };
    const svg = picture(width, height, label, ...nodes, ...marks(px, py, area), reading);
    svg.setAttribute("tabindex", 0);
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || hide()); // a finger lifts to read
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show(at < 0 ? (step > 0 ? 0 : epochs.length - 1) : at + step);
      else if (event.key === "Escape" && at >= 0) hide();
      else return;
      event.stopPropagation(); // the dialog turns its pages with the same keys
      event.preventDefault();
    });
    return svg;
  }
  return { figure, start: () => drawnToWidth(canvas, paint) };
}

// lines: {name, k, style, values, low?, high?, tell?}; least, most: ends that no value can pass; mark: a dashed line
// at this value; diagonal: both axes from 0 to 1, and the line where they are equal; unit: the y axis from 0 to 1;
// join: lines go on over missing numbers; ends: names at the ends of the lines.
function linesChart({ key, title, head, epochs, x, y, kind, lines, write, least, most, mark, height, ...options }) {
  const { diagonal = false, unit = diagonal, join = false, ends = false } = options;
  const cut = (value) => within(value, least ?? -Infinity, most ?? Infinity);
  const known = lines.flatMap(({ values, low, high }) => [
    ...values.filter(isNumber),
    ...(lines.length > BANDS ? [] : [...(low ?? []), ...(high ?? [])].filter(isNumber).map(cut)),
  ]);
  let [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
  const air = 0.04 * (high - low);
  [low, high] = [cut(low - air), cut(high + air)];
  if (low > 0 && low < 0.35 * high) low = 0;
  if (unit) [low, high] = [0, 1];
  const last = lines.map((line) => `${visible(line.name)} ${write(lastOf(line.values))}`);
  const names = last.length > 6 ? [...last.slice(0, 6), "…"] : last;
  const [first, final] = diagonal ? [0, 1] : [epochs[0], epochs.at(-1)];
  return epochChart({
    key,
    title,
    head,
    epochs,
    height,
    x: { low: first, high: final, title: x },
    y: { low, high, title: y, percent: kind === "percent" },
    right: ends ? 120 : 14,
    label: `${visible(title)} by ${visible(x)}; at the last: ${names.join(", ")}. Arrow keys read the others.`,
    marks: (px, py, area) => [
      isNumber(mark) && mark > low && mark < high && svgLine("chance", area.left, py(mark), area.right, py(mark)),
      diagonal && svgLine("chance", px(0), py(0), px(1), py(1)),
      ...lines.map((line) =>
        draw(
          "g",
          { class: `series ${line.style}${lines.length > BANDS ? " many" : ""}`, "data-line": line.k },
          line.low && draw("path.band", { d: bandPath(epochs, line, px, (v) => py(within(cut(v), low, high)), join) }),
          draw("path.curve", { d: linePath(epochs, line.values, px, py, join) }),
          singlePoints(epochs, line.values, px, py, join),
        ),
      ),
      ...(ends ? endNames(lines, py, area) : []),
    ],
    dots: (k) => lines.map((line) => [line.values[k], line.style]),
    read: (k) =>
      lines
        .filter((line) => isNumber(line.values[k]))
        .sort((a, b) => b.values[k] - a.values[k])
        .map((line) => tipEntry(lineSwatch(line.style), line.name, line.tell?.(k) ?? write(line.values[k]))),
  });
}

const tipEntry = (sign, name, text) => make("span.entry", sign, named(name), ` ${text}`);
const lastOf = (values) => values.findLast(isNumber);

// A gap in the numbers is a gap in the line, unless it is joined.
function linePath(xs, values, px, py, join = false) {
  let d = "";
  let pen = false;
  values.forEach((value, k) => {
    if (isNumber(value)) d += `${pen ? "L" : "M"}${px(xs[k]).toFixed(1)} ${py(value).toFixed(1)}`;
    pen = isNumber(value) || (pen && join);
  });
  return d;
}

// A number between two gaps has no line; it is a dot. If lines are joined, every number is.
function singlePoints(xs, values, px, py, every) {
  return values.flatMap((value, k) => {
    if (!isNumber(value) || (!every && (isNumber(values[k - 1]) || isNumber(values[k + 1])))) return [];
    return [draw("circle.point", { cx: px(xs[k]), cy: py(value), r: 2.5 })];
  });
}

function bandPath(xs, { low, high }, px, py, join) {
  const at = (k, value) => `${px(xs[k]).toFixed(1)} ${py(value).toFixed(1)}`;
  let d = "";
  let run = [];
  const close = () => {
    const outline = [...run.map((k) => at(k, high[k])), ...run.map((k) => at(k, low[k])).reverse()];
    if (run.length > 1) d += `M${outline.join("L")}Z`;
    run = [];
  };
  xs.forEach((_, k) => (isNumber(low[k]) && isNumber(high[k]) ? run.push(k) : join || close()));
  close();
  return d;
}

// Names at the ends of their lines, moved apart where they would overlap, upwards where they would leave the chart.
function endNames(lines, py, area) {
  const placed = lines
    .filter((line) => isNumber(lastOf(line.values)))
    .map((line) => ({ line, at: py(lastOf(line.values)) }))
    .sort((a, b) => a.at - b.at);
  placed.forEach((entry, k) => (entry.at = Math.max(entry.at, k ? placed[k - 1].at + 14 : 0)));
  placed.reverse().forEach((entry, k) => (entry.at = Math.min(entry.at, k ? placed[k - 1].at - 14 : area.bottom)));
  return placed.map(({ line, at }) => {
    const name = visible(line.name);
    const short = name.length > 16 ? `${name.slice(0, 15)}…` : name;
    return draw("g", { class: line.style }, svgText(area.right + 8, at + 4, short, "start", "end"));
  });
}

// A line's name as a button: pressed, the line is shown; focused, it stands out among the lines of a box.
function lineKey(line, box, shown, toggle) {
  const stress = (on) => () => {
    for (const node of box.querySelectorAll(".series[data-line]")) {
      const same = node.dataset.line === String(line.k);
      node.classList.toggle("strong", on && same);
      node.classList.toggle("faint", on && !same);
    }
  };
  const [on, off] = [stress(true), stress(false)];
  const events = { click: toggle, pointerenter: on, pointerleave: off, focus: on, blur: off };
  const state = { type: "button", class: "quiet key", "aria-pressed": String(shown), "data-testid": "curve-line" };
  return make("button", { ...state, ...events }, lineSwatch(line.style), named(line.name));
}

// The names of lines as buttons that hide them; show() draws again.
function lineKeys(legend, lines, box, hidden, show) {
  const toggle = (line, at) => () => {
    if (!hidden.delete(line.k)) hidden.add(line.k);
    show();
    legend.children[at]?.focus();
  };
  const keys = lines.map((line, at) => lineKey(line, box, !hidden.has(line.k), toggle(line, at)));
  legend.replaceChildren(...(lines.length > 1 ? keys : []));
}

// Parts of a change stacked above and below zero, with their sum as a line.
function barsChart({ key, title, head, epochs, x, parts, total, write }) {
  const stacks = epochs.map((_, k) => parts.map((part) => part.values[k]).filter(isNumber));
  const low = Math.min(...stacks.map((values) => sum(values.filter((value) => value < 0))), 0);
  const high = Math.max(...stacks.map((values) => sum(values.filter((value) => value > 0))), 0);
  const air = 0.05 * (high - low || 1);
  const step = epochs.length > 1 ? Math.min(...epochs.slice(1).map((epoch, k) => epoch - epochs[k])) : 1;
  return epochChart({
    key,
    title,
    head,
    epochs,
    x: { low: epochs[0] - step / 2, high: epochs.at(-1) + step / 2, title: x },
    y: { low: low < 0 ? low - air : 0, high: high > 0 || low === 0 ? high + air : 0 },
    label: `${visible(title)}; the same numbers are in the table below. Arrow keys read them.`,
    marks: (px, py, area) => [
      ...epochs.flatMap((epoch, k) => {
        const ends = { below: 0, above: 0 };
        const width = Math.max(1, (px(epoch + step) - px(epoch)) * 0.76);
        return parts.filter((part) => isNumber(part.values[k])).map((part) => {
          const side = part.values[k] < 0 ? "below" : "above";
          const edges = [py(ends[side]), py((ends[side] += part.values[k]))].sort((a, b) => a - b);
          const box = { x: px(epoch) - width / 2, y: edges[0], width, height: edges[1] - edges[0] };
          return draw("rect", { class: `bar ${part.style}`, ...box });
        });
      }),
      svgLine("axis", area.left, py(0), area.right, py(0)),
      draw("path", { class: "curve total", d: linePath(epochs, total, px, py) }),
    ],
    dots: (k) => [[total[k], "total"]],
    read: (k) => [
      ...parts.map((part) => tipEntry(barSwatch(part.style), part.name, write(part.values[k]))),
      tipEntry(lineSwatch("total"), "together", write(total[k])),
    ],
  });
}
