// What the dialog shows of a sample beside its scores: the most probable classes, and its neighbors.

function sampleDetails(report, i) {
  return make("div.details", probableClasses(report, i), neighbors(report, i));
}

// A small picture that opens its sample among some others.
function thumb(report, i, rows) {
  const attributes = { class: "thumb", "aria-label": describe(report, i) };
  return makeButton(thumbnail(report, i, "small"), () => report.open(i, rows), attributes);
}

// The nearest samples in feature space with their labels; "Previous" leads back from them.
function neighbors(report, i) {
  const { samples, payload, className } = report;
  const { k, places } = payload.points.neighbors ?? {};
  const near = k ? places.slice(i * k, (i + 1) * k).filter((j) => j >= 0) : [];
  if (near.length === 0) return null;
  const name = (j) => named(className(samples.of[j]), { class: samples.of[j] === samples.of[i] ? "" : "differs" });
  const items = near.map((j) => make("span.neighbor", thumb(report, j, [i, ...near]), samples.of[j] >= 0 && name(j)));
  const title = `Nearest in feature space${payload.labeled ? ", with their labels" : ""}`;
  return make("div", { "data-testid": "neighbors" }, make("p.caption", title), make("div.thumbs", items));
}

function probableClasses({ payload, samples, className }, i) {
  const { width, codes, thousandths } = payload.points.probable ?? {};
  if (!width || codes[i * width] < 0) return null;
  const row = (k) => {
    const [code, share] = [codes[i * width + k], thousandths[i * width + k] / 1000];
    const bar = make("span", { class: code === samples.label[i] ? "share label" : "share" });
    bar.style.width = `${100 * share}%`;
    const name = make("th", { scope: "row" }, named(className(code)));
    return make("tr", name, make("td.track", bar), make("td.number", percent(share)));
  };
  const caption = make("caption", samples.label[i] >= 0 ? "Most probable classes, the label in blue" : "Most probable classes");
  return make("table.probable", { "data-testid": "probable" }, caption, make("tbody", Array.from({ length: width }, (_, k) => row(k))));
}
