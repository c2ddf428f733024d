// Training: curves by group with two selectors, what drives the loss, the class weights, and one sample's own curves.

const STYLES = 12; // lines that can be told apart

function drawTraining(report) {
  const training = report.payload.training;
  if (!training || !find("curves")) return;
  drawCurves(training);
  drawDrivers(training);
  drawHeads(training);
}

function drawCurves(training) {
  const { groupings, values, unit } = training;
  const value = find("curve-value");
  const grouping = find("curve-grouping");
  value.append(
    make("option", { value: "" }, "everything"),
    ...values.map((one) => make("option", { value: one.key }, one.title)),
  );
  grouping.append(...groupings.map((one, k) => make("option", { value: k }, visible(one.title))));
  const hidden = new Set(); // lines of this grouping that are switched off
  const table = foldedTable("curve", () => {
    const { group, shown, wanted } = chosen();
    const rows = training.epochs.flatMap((epoch, at) => shown.map((line) => ({ epoch, at, line })));
    const columns = [
      { key: "epoch", title: visible(unit), kind: "int", of: (row) => row.epoch },
      { key: "line", title: visible(group.title), kind: "text", of: (row) => row.line.name },
      { key: "n", title: "samples", kind: "int", of: (row) => row.line.n[row.at] },
      ...wanted.map((one) => ({
        key: one.key,
        title: `${one.title} (${one.kind === "percent" ? "95 % interval" : "± sd"})`,
        kind: one.kind,
        of: (row) => row.line[one.key].mean[row.at],
        cell: (row) => tellValue(one, row.line[one.key], row.at),
      })),
    ];
    return { columns, rows, caption: `Means by ${visible(unit)}` };
  });

  function chosen() {
    const group = groupings[Number(grouping.value)];
    const style = group.ordered ? "step" : "line";
    const lines = group.lines.map((line, k) => ({ ...line, k, style: `${style}-${k % STYLES}` }));
    return {
      group,
      lines,
      shown: lines.filter((line) => !hidden.has(line.k)),
      wanted: values.filter((one) => value.value === "" || one.key === value.value),
    };
  }

  function show() {
    const { group, lines, shown, wanted } = chosen();
    find("curve-legend").replaceChildren(...(lines.length > 1 ? lines.map(legendButton) : []));
    const many =
      shown.length > BANDS ? ` Of more than ${BANDS} lines, the one whose name is pointed at has a band.` : "";
    find("curve-note").textContent = visible(group.note ?? "") + many;
    find("curves").classList.toggle("one", wanted.length === 1);
    place(
      find("curves"),
      wanted.map((one) => valueChart(training, one, shown, wanted.length === 1)),
    );
    table.refresh();
  }

  function legendButton(line) {
    return lineKey(line, find("curves"), !hidden.has(line.k), () => {
      if (!hidden.delete(line.k)) hidden.add(line.k);
      show();
      find("curve-legend").children[line.k].focus();
    });
  }

  value.addEventListener("change", show);
  grouping.addEventListener("change", () => {
    hidden.clear();
    show();
  });
  find("curve-table").append(table.node);
  show();
}

function place(box, charts) {
  box.replaceChildren(...charts.map((chart) => chart.figure));
  for (const chart of charts) chart.start();
}

// The numbers behind charts: built when somebody opens it, and again when the charts change.
function foldedTable(key, describe) {
  const box = make("div", { "data-testid": `${key}-table` });
  const refresh = () => node.open && box.replaceChildren(makeTable({ key, ...describe() }));
  const node = make(
    "details",
    { class: "rest", toggle: () => refresh() },
    make("summary", {}, "Numbers as a table"),
    box,
  );
  return { node, refresh };
}

function tellValue({ kind }, own, k) {
  const write = WRITERS[kind];
  if (!isNumber(own.mean[k])) return "–";
  if (own.low) return `${write(own.mean[k])} (${write(own.low[k])} to ${write(own.high[k])})`;
  return isNumber(own.sd?.[k]) ? `${write(own.mean[k])} ± ${write(own.sd[k])}` : write(own.mean[k]);
}

// The ends of a band: given, or one standard deviation to either side, or none.
function bandOf(own) {
  if (own.low) return own;
  if (!own.sd) return {};
  const away = (sign) =>
    own.mean.map((mean, k) => (isNumber(mean) && isNumber(own.sd[k]) ? mean + sign * own.sd[k] : null));
  return { low: away(-1), high: away(1) };
}

function valueChart(training, one, shown, large) {
  const lines = shown.map((line) => {
    const { low, high } = bandOf(line[one.key]);
    const tell = (k) => `${tellValue(one, line[one.key], k)}, n = ${whole(line.n[k])}`;
    return { name: line.name, k: line.k, style: line.style, values: line[one.key].mean, low, high, tell };
  });
  return linesChart({
    key: one.key,
    title: one.title,
    head: make("span", { class: "legend" }, visible(one.text)),
    epochs: training.epochs,
    unit: training.unit,
    kind: one.kind,
    lines,
    least: one.least,
    most: one.most,
    mark: one.key === "avh" ? 1 : null,
    write: WRITERS[one.kind],
    height: large ? 380 : 220,
    ends: large && lines.length > 1 && innerWidth > 760,
  });
}

const legendOf = (entries) =>
  make(
    "span",
    { class: "legend" },
    ...entries.map(([sign, name]) => make("span", { class: "entry" }, sign, named(name))),
  );

function drawDrivers({ drivers, epochs, unit }) {
  const box = find("drivers");
  if (!drivers) return;
  box.append(
    make("h3", {}, "What drives the loss: angles or norms"),
    make("p", { class: "note" }, named(drivers.note)),
  );
  if (!drivers.lines?.length) return;
  const options = drivers.lines.map((line, k) => make("option", { value: k }, visible(line.name)));
  const select = make("select", { "data-testid": "driver-line" }, ...options);
  const charts = make("div", { class: "charts" });
  const line = () => drivers.lines[Number(select.value)];
  const table = foldedTable("driver", () => ({
    caption: "What changed the mean loss",
    rows: epochs.map((_, k) => k),
    columns: [
      { key: "epoch", title: visible(unit), kind: "int", of: (k) => epochs[k] },
      { key: "angles", title: "by the angles", kind: "signed", of: (k) => line().by_angles[k] },
      { key: "norms", title: "by norms and biases", kind: "signed", of: (k) => line().by_norms[k] },
      { key: "change", title: "together", kind: "signed", of: (k) => line().change[k] },
    ],
  }));
  const summed = (values) => {
    let total = 0;
    return values.map((value) => (isNumber(value) ? (total += value) : null));
  };
  const show = () => {
    const { by_angles, by_norms, change } = line();
    const parts = [
      { name: "angles", style: "angles", values: by_angles },
      { name: "norms and biases", style: "norms", values: by_norms },
    ];
    const together = { name: "together", style: "total", values: change };
    const same = { epochs, unit, write: signed };
    const all = [...parts, together];
    place(charts, [
      barsChart({
        ...same,
        key: "drivers",
        title: `Change of the loss in each ${visible(unit)}`,
        head: legendOf([...parts.map((one) => [barSwatch(one.style), one.name]), [lineSwatch("total"), "together"]]),
        parts,
        total: change,
      }),
      linesChart({
        ...same,
        key: "drivers-sum",
        title: `Summed since ${visible(unit)} ${whole(epochs[0])}`,
        head: legendOf(all.map((one) => [lineSwatch(one.style), one.name])),
        lines: all.map((one) => ({ ...one, values: summed(one.values) })),
        mark: 0,
      }),
    ]);
    table.refresh();
  };
  select.addEventListener("change", show);
  box.append(make("p", {}, make("label", {}, "Samples ", select)), charts, table.node);
  show();
}

function drawHeads({ heads, epochs, unit }) {
  const box = find("head-norms");
  if (!heads?.lines?.length) return;
  const lines = heads.lines.map((line, k) => {
    const tell = (at) => tellValue({ kind: "number" }, line, at);
    return { name: line.name, k, style: `line-${k % STYLES}`, values: line.mean, ...bandOf(line), tell };
  });
  const head = legendOf(lines.map((line) => [lineSwatch(line.style), line.name]));
  const title = "Norm of the class weights";
  const chart = linesChart({ key: "heads", title, head, epochs, unit, lines, least: 0, write: number, height: 260 });
  const table = foldedTable("head", () => ({
    caption: title,
    rows: epochs.map((_, k) => k),
    columns: [
      { key: "epoch", title: visible(unit), kind: "int", of: (k) => epochs[k] },
      ...lines.map((line) => ({
        key: `line-${line.k}`,
        title: visible(line.name),
        of: (k) => line.values[k],
        cell: (k) => line.tell(k),
      })),
    ],
  }));
  const charts = make("div", {});
  box.append(make("h3", {}, "Class weights"), make("p", { class: "note" }, named(heads.note)), charts, table.node);
  place(charts, [chart]);
}

// One sample's curves: two letters a number, steps between the least and the greatest of all.
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const MISSING = 64 * 64 - 1;

function decoded({ low, width, codes }, k, length) {
  return Array.from({ length }, (_, e) => {
    const at = 2 * (k * length + e);
    const step = 64 * LETTERS.indexOf(codes[at]) + LETTERS.indexOf(codes[at + 1]);
    return step === MISSING ? null : low + (width * step) / (MISSING - 1);
  });
}

function sampleCurves({ payload }, i) {
  const curves = payload.training?.curves;
  if (!curves) return null;
  const { epochs, unit, groupings, values } = payload.training;
  const at = curves.points.indexOf(i);
  const box = make("div", { class: "history", "data-testid": "sample-curves" }, make("h3", {}, `By ${visible(unit)}`));
  if (at < 0) {
    box.append(make("p", { class: "note" }, `The curves of this sample are not kept here. ${visible(curves.note)}`));
    return { node: box, start() {} };
  }
  const [all] = groupings[0].lines;
  const charts = values
    .filter((one) => curves[one.key])
    .map((one) =>
      linesChart({
        key: `sample-${one.key}`,
        title: one.title,
        epochs,
        unit,
        kind: one.kind,
        lines: [
          { name: "mean of all", style: "other", values: all[one.key].mean },
          { name: "this sample", style: "own", values: decoded(curves[one.key], at, epochs.length) },
        ],
        least: one.least,
        most: one.most,
        mark: one.key === "avh" ? 1 : null,
        write: WRITERS[one.kind],
        height: 160,
      }),
    );
  const legend = [
    [lineSwatch("own"), "this sample"],
    [lineSwatch("other"), "mean of all samples"],
  ];
  box.append(legendOf(legend), make("div", { class: "charts" }, ...charts.map((chart) => chart.figure)));
  return { node: box, start: () => charts.forEach((chart) => chart.start()) };
}
