// Training: curves by group with two selectors, what drives the loss, the class weights, and the curves of one sample.

const STYLES = 12; // lines that can be told apart

sections.training = (box, training) => {
  const parts = ["curves-part", "drivers", "head-norms"].map((key) => make("div", { "data-testid": key, id: key }));
  box.append(...parts);
  drawCurves(parts[0], training);
  drawDrivers(parts[1], training);
  drawHeads(parts[2], training);
};

function drawCurves(box, { groupings, values, unit, epochs }) {
  const hidden = new Set(); // lines of this grouping that are switched off
  let [value, grouping] = [-1, 0];
  const titles = ["everything", ...values.map(({ title }) => title)];
  const valueSelect = makeSelect(titles, (k) => choose(k - 1, grouping), "curve-value");
  const groupSelect = makeSelect(groupings.map(({ title }) => title), (k) => choose(value, k), "curve-grouping");
  const note = make("p.note", { id: "curve-note" });
  const legend = make("div.keys", { id: "curve-legend", role: "group", "aria-label": "Lines" });
  const charts = make("div.charts", { "data-testid": "curves" });
  const table = foldedTable(() => {
    const { group, shown, selected } = current();
    const at = epochs.flatMap((_, k) => shown.map((line) => [line, k]));
    const ends = ({ kind }) => (kind === "percent" ? "95% interval" : "± sd");
    const columns = selected.map((each) => ({ ...each, title: `${each.title} (${ends(each)})` }));
    const cells = selected.map((each) => [each.key, (_, row) => valueText(each, at[row][0][each.key], at[row][1])]);
    const means = ([line, k]) => selected.map(({ key }) => line[key].mean[k]);
    return [
      {
        key: "curve",
        caption: `Means by ${visible(unit)}`,
        sort: "epoch",
        ascending: true,
        columns: [
          { key: "epoch", title: unit, kind: "int" },
          { key: "line", title: group.title, kind: "text" },
          { key: "n", title: "samples", kind: "int" },
          ...columns,
        ],
        rows: at.map(([line, k]) => [epochs[k], line.name, line.n[k], ...means([line, k])]),
      },
      Object.fromEntries(cells),
    ];
  });

  function current() {
    const group = groupings[grouping];
    const style = group.ordered ? "step" : "line";
    const lines = group.lines.map((line, k) => ({ ...line, k, style: `${style}-${k % STYLES}` }));
    const selected = value < 0 ? values : [values[value]];
    return { group, lines, shown: lines.filter((line) => !hidden.has(line.k)), selected };
  }

  function choose(newValue, newGrouping) {
    if (newGrouping !== grouping) hidden.clear();
    [value, grouping] = [newValue, newGrouping];
    show();
  }

  function show() {
    const { group, lines, shown, selected } = current();
    lineKeys(legend, lines, charts, hidden, show);
    const many = shown.length > BANDS ? ` With more than ${BANDS} lines, only the highlighted one has a band.` : "";
    note.textContent = visible(group.note) + many;
    const large = selected.length === 1;
    charts.classList.toggle("single", large);
    place(charts, selected.map((each) => {
      const lines = shown.map((line) => {
        const { name, k, style, n, [each.key]: curve } = line;
        const tell = (at) => `${valueText(each, curve, at)}, n = ${whole(n[at])}`;
        return { name, k, style, values: curve.mean, ...bandOf(curve), tell };
      });
      const head = make("span.legend", visible(each.text));
      const ends = large && lines.length > 1 && innerWidth > 760;
      return linesChart({ ...chartOf(each, epochs, unit), head, lines, height: large ? 380 : 220, ends });
    }));
    table.refresh();
  }

  const selects = make("p.filters", make("label", "Show ", valueSelect), make("label", "by ", groupSelect));
  box.append(selects, note, legend, charts, make("div", { id: "curve-table" }, table.node));
  show();
}

// What all charts of a value have in common.
const chartOf = ({ key, title, kind, least, most }, epochs, unit) =>
  ({ key, title, kind, least, most, epochs, x: unit, mark: key === "avh" ? 1 : null, write: WRITERS[kind] });

function valueText({ kind }, { mean, low, high, sd }, k) {
  const write = WRITERS[kind];
  if (!isNumber(mean[k])) return "–";
  if (low) return `${write(mean[k])} (${write(low[k])} to ${write(high[k])})`;
  return isNumber(sd?.[k]) ? `${write(mean[k])} ± ${write(sd[k])}` : write(mean[k]);
}

// The ends of a band: given, or one standard deviation to either side, or none.
function bandOf({ mean, low, high, sd }) {
  if (low) return { low, high };
  if (!sd) return {};
  const away = (sign) => mean.map((value, k) => (isNumber(value) && isNumber(sd[k]) ? value + sign * sd[k] : null));
  return { low: away(-1), high: away(1) };
}

function drawDrivers(box, { drivers, epochs, unit }) {
  box.append(make("h3", "What drives the loss: angles or norms"), makeNote(drivers.note));
  if (drivers.lines.length === 0) return;
  let line = drivers.lines[0];
  const charts = make("div.charts");
  const table = foldedTable(() => [epochTable("driver", "What changed the mean loss", epochs, unit, [
    { key: "angles", title: "by the angles", kind: "signed", values: line.by_angles },
    { key: "norms", title: "by norms and biases", kind: "signed", values: line.by_norms },
    { key: "change", title: "together", kind: "signed", values: line.change },
  ])]);
  const summed = (values) => {
    let total = 0;
    return values.map((value) => (isNumber(value) ? (total += value) : null));
  };
  const show = (at) => {
    line = drivers.lines[at];
    const parts = [
      { name: "angles", style: "angles", values: line.by_angles },
      { name: "norms and biases", style: "norms", values: line.by_norms },
    ];
    const all = [...parts, { name: "together", style: "total", values: line.change }];
    const bars = [...parts.map(({ style, name }) => [barSwatch(style), name]), [lineSwatch("total"), "together"]];
    const same = { epochs, x: unit, write: signed };
    place(charts, [
      barsChart({
        ...same,
        key: "drivers",
        title: `Change of the loss in each ${visible(unit)}`,
        head: legendOf(bars),
        parts,
        total: line.change,
      }),
      linesChart({
        ...same,
        key: "drivers-sum",
        title: `Summed since ${visible(unit)} ${whole(epochs[0])}`,
        head: legendOf(all.map(({ style, name }) => [lineSwatch(style), name])),
        lines: all.map((each) => ({ ...each, values: summed(each.values) })),
        mark: 0,
      }),
    ]);
    table.refresh();
  };
  const select = makeSelect(drivers.lines.map(({ name }) => name), show, "driver-line");
  box.append(make("p", make("label", "Samples ", select)), charts, table.node);
  show(0);
}

function drawHeads(box, { heads, epochs, unit }) {
  if (!heads) return;
  const lines = heads.lines.map((line, k) => {
    const tell = (at) => valueText({ kind: "number" }, line, at);
    return { name: line.name, k, style: `line-${k % STYLES}`, values: line.mean, ...bandOf(line), tell };
  });
  const head = legendOf(lines.map((line) => [lineSwatch(line.style), line.name]));
  const title = "Norm of the class weights";
  const table = foldedTable(() => {
    const columns = lines.map(({ name, k, values }) => ({ key: `line-${k}`, title: name, kind: "number", values }));
    const cells = lines.map(({ k, tell }) => [`line-${k}`, (_, at) => tell(at)]);
    return [epochTable("head", title, epochs, unit, columns), Object.fromEntries(cells)];
  });
  const charts = make("div");
  const chart = { key: "heads", title, head, epochs, x: unit, lines, least: 0, write: number, height: 260 };
  box.append(make("h3", "Class weights"), makeNote(heads.note), charts, table.node);
  place(charts, [linesChart(chart)]);
}

// One row per epoch; columns: {key, title, kind, values}.
const epochTable = (key, caption, epochs, unit, columns) => ({
  key,
  caption,
  sort: "epoch",
  ascending: true,
  columns: [{ key: "epoch", title: unit, kind: "int" }, ...columns],
  rows: epochs.map((epoch, k) => [epoch, ...columns.map(({ values }) => values[k])]),
});

// The curve of one sample: 16-bit steps in base64 between the smallest and the largest value of all.
function decoded({ low, width, steps }, k, length) {
  const bytes = atob(steps);
  return Array.from({ length }, (_, epoch) => {
    const at = 2 * (k * length + epoch);
    const step = bytes.charCodeAt(at) + 256 * bytes.charCodeAt(at + 1);
    return step === 65535 ? null : low + (width * step) / 65534;
  });
}

// The part of the dialog on one sample, or null where nothing was recorded: {node, start}.
function sampleCurves({ training }, i) {
  if (!training) return null;
  const { epochs, unit, groupings, values, curves } = training;
  const at = curves.points.indexOf(i);
  const box = make("div.history", { "data-testid": "sample-curves" }, make("h3", `By ${visible(unit)}`));
  if (at < 0) {
    box.append(makeNote(`The curves of this sample are not kept here. ${curves.note}`));
    return { node: box, start() {} };
  }
  const [all] = groupings[0].lines;
  const charts = values.filter(({ key }) => curves[key]).map((each) => {
    const lines = [
      { name: "mean of all", style: "other", values: all[each.key].mean },
      { name: "this sample", style: "own", values: decoded(curves[each.key], at, epochs.length) },
    ];
    return linesChart({ ...chartOf(each, epochs, unit), key: `sample-${each.key}`, lines, height: 160 });
  });
  const grid = make("div.charts");
  box.append(legendOf([[lineSwatch("own"), "this sample"], [lineSwatch("other"), "mean of all samples"]]), grid);
  return { node: box, start: () => place(grid, charts) };
}
