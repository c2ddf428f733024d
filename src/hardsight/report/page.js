// The start: read the payload, connect the parts, draw what is seen first, and the rest when the browser is idle.

const payload = JSON.parse(find("payload").textContent);
const names = classNames(payload);

const report = {
  payload,
  names,
  samples: readSamples(payload),
  choice: nothingChosen(),
  groupValues: readGroupValues(payload),
  mainTitle: "",
  className: (k) => names[k] ?? `class ${k}`,
  view: () => scatter.view(),
  open: (i, rows) => dialog.open(i, rows),
  point: (i) => scatter.mark(i),
  dialogIsOpen: () => dialog.isOpen(),
  rebrush: () => gallery.follow(),
  refilter() {
    markMatches(report.samples, report.choice);
    gallery.refresh();
    scatter.redraw();
  },
  chooseClass(k) {
    Object.assign(report.choice, { klass: k, limit: CARDS });
    report.refilter();
    comeTo("pictures");
  },
  chooseGroup(group) {
    Object.assign(report.choice, { group, limit: CARDS });
    gallery.select("all"); // lists are short; a group is looked for among all
    report.refilter();
    comeTo("pictures");
  },
};

report.mainTitle = report.samples.hardness ? scoreTitle(payload, report.samples.hardness) : "hardness";
const gallery = makeGallery(report);
const dialog = makeDialog(report);
const scatter = makeScatter(report);
makeThemeButton(() => scatter.redraw(), drawAll);
report.refilter();

for (const button of document.querySelectorAll("[data-list]")) {
  if (!gallery.has(button.dataset.list)) continue;
  button.hidden = false;
  button.addEventListener("click", () => {
    gallery.select(button.dataset.list);
    comeTo("pictures");
  });
}
const command = find("next-command");
if (command) find("copy-command").append(copyButton("Copy", command.textContent, command));

function comeTo(id) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  find(id).scrollIntoView({ behavior: still ? "auto" : "smooth" });
  find("tabs").querySelector('[aria-selected="true"]').focus({ preventScroll: true });
}

const later = [
  drawTraining,
  drawPeople,
  drawHistograms,
  drawRidge,
  drawClassTable,
  drawGroups,
  drawClusters,
  drawComparison,
];

function drawNext() {
  const part = later.shift();
  if (part) part(report);
  if (later.length === 0) document.documentElement.dataset.drawn = "all";
}

function drawAll() {
  while (later.length) drawNext();
}

const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 30));
(function continueLater() {
  whenIdle(() => {
    drawNext();
    if (later.length) continueLater();
  });
})();
