// The samples of the page as typed arrays, what is chosen among them, and which match.

// What the prediction says about the label; a sample without either is not judged.
const [RIGHT, WRONG, UNJUDGED] = [0, 1, 2];
const KINDS = ["right", "wrong", "plain"];

function readSamples(payload) {
  const { points, pictures } = payload;
  const n = points.id.length;
  const numbers = (values) => Float64Array.from(values, (value) => (isNumber(value) ? value : NaN));
  const indices = (values) => Int32Array.from({ length: n }, (_, i) => values?.[i] ?? -1);
  const columns = new Map(Object.entries(points.scores ?? {}).map(([key, values]) => [key, numbers(values)]));
  const label = indices(points.label);
  const pred = indices(points.pred);
  const picture = indices(points.picture).map((at) => (at < pictures.length ? at : -1));
  const kind = Uint8Array.from(label, (value, i) =>
    value < 0 || pred[i] < 0 ? UNJUDGED : value === pred[i] ? RIGHT : WRONG,
  );
  const first = (...keys) => keys.find((key) => columns.has(key));
  const hardness = first("avh", "avh_pred", payload.views[0]?.x.column, ...columns.keys());
  const largerIsHarder = payload.scores[hardness]?.harder !== "smaller";
  const samples = {
    n,
    id: points.id,
    label,
    pred,
    picture,
    kind,
    columns,
    hardness,
    confidence: first("confidence", "confidence_pred"),
    suggested: indices(points.suggested),
    largerIsHarder,
    order: byHardness(columns.get(hardness), largerIsHarder, n),
    match: new Uint8Array(n).fill(1),
    lower: null, // ids in lower case, made when somebody first searches
  };
  samples.of = payload.labelled ? label : pred; // the class that a class filter means
  return samples;
}

// Indices from hard to easy; what has no score comes last.
function byHardness(values, largerIsHarder, n) {
  const order = Int32Array.from({ length: n }, (_, i) => i);
  if (!values) return order;
  const sign = largerIsHarder ? -1 : 1;
  return order.sort((a, b) => {
    const difference = sign * (values[a] - values[b]);
    if (difference === difference) return difference || a - b;
    return Number(Number.isNaN(values[a])) - Number(Number.isNaN(values[b])) || a - b;
  });
}

// Names that tell the classes apart, also where two are spelled the same or one is empty.
function classNames(payload) {
  const seen = new Map();
  for (const name of payload.classes) seen.set(name, (seen.get(name) ?? 0) + 1);
  return payload.classes.map((name, k) => {
    if (visible(name).trim() === "") return `class ${k}`;
    return seen.get(name) > 1 ? `${visible(name)} (class ${k})` : visible(name);
  });
}

const nothingChosen = () => ({ tab: "", klass: -1, wrong: false, text: "", group: null, brush: null, limit: 48 });

const filtering = (choice) => choice.klass >= 0 || choice.wrong || choice.text !== "" || choice.group !== null;

// Which samples pass the filters; the brush is no filter, it has a tab of its own.
function markMatches(samples, choice) {
  const { match, of, kind, n } = samples;
  const text = choice.text.toLowerCase();
  if (text && !samples.lower) samples.lower = samples.id.map((id) => String(id).toLowerCase());
  for (let i = 0; i < n; i++) {
    match[i] =
      (choice.klass < 0 || of[i] === choice.klass) &&
      (!choice.wrong || kind[i] === WRONG) &&
      (!text || samples.lower[i].includes(text)) &&
      (!choice.group || choice.group.values[i] === choice.group.value)
        ? 1
        : 0;
  }
}

// The samples inside the brush that pass the filters, hardest first.
function insideBrush(samples, view, brush) {
  const rows = [];
  const xs = samples.columns.get(view.x.column);
  const ys = samples.columns.get(view.y.column);
  if (!xs || !ys || !brush) return rows;
  const { order, match } = samples;
  for (let k = 0; k < order.length; k++) {
    const i = order[k];
    const x = xs[i];
    const y = ys[i];
    if (match[i] && x >= brush.x0 && x <= brush.x1 && y >= brush.y0 && y <= brush.y1) rows.push(i);
  }
  return rows;
}

// Those with a picture first; the order is kept otherwise.
function picturesFirst(rows, picture) {
  const shown = [];
  const bare = [];
  for (const i of rows) (picture[i] >= 0 ? shown : bare).push(i);
  return { rows: shown.concat(bare), pictures: shown.length };
}
