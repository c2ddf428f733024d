// The samples of the page as typed arrays, the selection, and which samples match the filters.

// Whether the prediction equals the label; a sample that lacks either is not judged.
const [RIGHT, WRONG, UNJUDGED] = [0, 1, 2];
const KINDS = ["right", "wrong", "plain"];

function readSamples({ points, scores, views, labeled }) {
  const n = points.id.length;
  const numbers = (values) => Float64Array.from(values, (value) => value ?? NaN);
  const [label, pred] = [Int32Array.from(points.label), Int32Array.from(points.pred)];
  const columns = new Map(Object.entries(points.scores).map(([key, values]) => [key, numbers(values)]));
  const judged = (value, i) => (value < 0 || pred[i] < 0 ? UNJUDGED : value === pred[i] ? RIGHT : WRONG);
  const hardness = columns.has("avh") ? "avh" : (views[0]?.x.column ?? columns.keys().next().value);
  const largerIsHarder = scores[hardness]?.harder !== "smaller";
  return {
    n,
    id: points.id,
    exact: Object.assign([...points.id], points.long), // ids that are longer than what is shown; null beyond a limit
    label,
    pred,
    of: labeled ? label : pred, // the class that a class filter compares
    picture: points.picture,
    kind: Uint8Array.from(label, judged),
    columns,
    hardness,
    suggested: points.suggested ?? [],
    planted: points.planted ?? [], // the label before it was changed on purpose
    largerIsHarder,
    order: inOrder(Int32Array.from(label.keys()), columns.get(hardness), largerIsHarder),
    match: new Uint8Array(n).fill(1),
    lower: null, // ids in lower case, made when somebody first searches
  };
}

// Rows by a score; those without one come last.
function inOrder(rows, values, down) {
  if (!values) return rows;
  const sign = down ? -1 : 1;
  return rows.sort((a, b) => {
    const difference = sign * (values[a] - values[b]);
    if (!Number.isNaN(difference)) return difference || a - b;
    return Number(Number.isNaN(values[a])) - Number(Number.isNaN(values[b])) || a - b;
  });
}

// Names by code that tell the classes apart, also where two are spelled the same or one is empty.
function classNames({ classes }) {
  const count = new Map();
  for (const name of Object.values(classes)) count.set(name, (count.get(name) ?? 0) + 1);
  const distinct = ([k, name]) => {
    if (visible(name).trim() === "") return `class ${k}`;
    return count.get(name) > 1 ? `${visible(name)} (class ${k})` : visible(name);
  };
  return new Map(Object.entries(classes).map((entry) => [Number(entry[0]), distinct(entry)]));
}

// The text of each sample's value by column.
function readGroupValues({ points, groups }) {
  const texts = new Map(Object.entries(groups?.values ?? {}));
  const values = (column, codes) => codes.map((k) => texts.get(column)?.[k] ?? null);
  return new Map(Object.entries(points.groups).map(([column, codes]) => [column, values(column, codes)]));
}

const noFilter = () => ({ klass: -1, wrong: false, undecided: false, text: "", group: null, pair: null });
const filtering = ({ klass, wrong, undecided, text, group, pair }) =>
  Boolean(klass >= 0 || wrong || undecided || text || group || pair);

// Mark the samples that pass the filters; the brush is not a filter, it has its own tab.
function markMatches(samples, choice) {
  const { match, of, kind, label, pred, n } = samples;
  const text = choice.text.toLowerCase();
  if (text) samples.lower ??= samples.id.map((id) => id.toLowerCase());
  for (let i = 0; i < n; i++) {
    const inClass = choice.klass < 0 || of[i] === choice.klass;
    const inGroup = !choice.group || choice.group.values[i] === choice.group.value;
    const inPair = !choice.pair || (label[i] === choice.pair.label && pred[i] === choice.pair.pred);
    match[i] =
      inClass && inGroup && inPair && (!choice.wrong || kind[i] === WRONG) && (!text || samples.lower[i].includes(text));
  }
}

// The samples inside the brush that pass the filters, hardest first.
function insideBrush({ columns, order, match }, view, brush) {
  const [xs, ys] = [columns.get(view.x.column), columns.get(view.y.column)];
  const { x0, x1, y0, y1 } = brush;
  const rows = [];
  for (const i of order) if (match[i] && xs[i] >= x0 && xs[i] <= x1 && ys[i] >= y0 && ys[i] <= y1) rows.push(i);
  return rows;
}
