// The start: read the payload, connect the parts, draw what is seen first, and the sections when the browser is idle.

const payload = JSON.parse(find("payload").textContent);
const names = classNames(payload);
const samples = readSamples(payload);

const report = {
  payload,
  names,
  samples,
  choice: { tab: "", ...noFilter(), sort: null, brush: null, limit: CARDS },
  groupValues: readGroupValues(payload),
  mainTitle: samples.hardness ? scoreTitle(payload, samples.hardness) : "hardness",
  className: (k) => names.get(k) ?? `class ${k}`,
  view: () => scatter.view(),
  open: (i, rows) => dialog.open(i, rows),
  point: (i) => scatter.mark(i),
  dialogIsOpen: () => dialog.isOpen(),
  opened: () => dialog.opened(),
  closed: (i, rows) => rows === gallery.rows() && gallery.go(i, true),
  openById(id) {
    const i = id === null ? -1 : samples.exact.indexOf(id);
    if (i >= 0) dialog.open(i, gallery.rows().includes(i) ? gallery.rows() : [i]);
  },
  decided(rows) {
    gallery.decided(rows);
    dialog.mark();
  },
  changed: () => address?.write(), // the address holds the view
  rebrush: () => gallery.follow(),
  relist: () => gallery.refresh(),
  refilter() {
    markMatches(samples, report.choice);
    gallery.refresh();
    scatter.redraw();
  },
  chooseClass: (klass) => select({ klass }),
  chooseGroup: (group) => select({ group, tab: "all" }), // lists are short; a group is searched for in all samples
  choosePair: (pair) => select({ ...noFilter(), pair, tab: "all" }),
  hasList: (key) => gallery.has(key),
  showList(key) {
    gallery.select(key);
    showGallery();
  },
};

let address = null;
report.review = makeReview(report);
const gallery = makeGallery(report);
const dialog = makeDialog(report);
const scatter = makeScatter(report);
makeThemeButton(() => scatter.redraw(), drawAll);
report.refilter();
address = makeAddress(report, scatter);
address.read();

function select(change) {
  Object.assign(report.choice, change, { limit: CARDS });
  report.refilter();
  showGallery();
}

function showGallery() {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  find("samples").scrollIntoView({ behavior: still ? "auto" : "smooth" });
  find("tabs").querySelector('[aria-selected="true"]').focus({ preventScroll: true });
}

const undrawn = [...payload.sections];

function drawNext() {
  const next = undrawn.shift();
  if (next) {
    const [box, data] = [find(next.key), payload[next.key]];
    const cells = sections[next.key]?.(box.querySelector(".drawn"), data, report);
    const tables = (data.tables ?? []).filter(({ rows }) => rows.length);
    box.querySelectorAll(".table").forEach((node, k) => tables[k] && enhance(node, tables[k], cells?.(tables[k])));
  }
  if (undrawn.length === 0) document.documentElement.dataset.drawn = "all";
}

function drawAll() {
  while (undrawn.length) drawNext();
}

const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 30));
(function continueLater() {
  whenIdle(() => {
    drawNext();
    if (undrawn.length) continueLater();
  });
})();
