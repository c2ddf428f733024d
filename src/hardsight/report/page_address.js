// The view in the address: #tab=suspects&class=3&sort=avh restores it, and unknown parts are ignored.

function makeAddress(report, scatter) {
  const { payload, samples, names, choice } = report;
  const first = choice.tab;
  const ends = ["x0", "x1", "y0", "y1"];
  let waiting = 0;
  let written = "";

  function text() {
    const { tab, klass, text, wrong, undecided, group, pair, sort, brush } = choice;
    const [view, sample] = [report.view()?.key, report.opened()];
    const entries = {
      tab: tab !== first && tab,
      class: klass >= 0 && klass,
      text,
      wrong: wrong && 1,
      undecided: undecided && 1,
      group: group?.column,
      value: group?.value,
      pair: pair && `${pair.label},${pair.pred}`,
      sort: sort && (sort.down ? "" : "-") + sort.key,
      view: view !== payload.views[0]?.key && view,
      brush: brush && ends.map((end) => (Number.isFinite(brush[end]) ? brush[end] : "")).join(","),
      sample: sample >= 0 && samples.exact[sample],
    };
    const given = Object.entries(entries).filter(([, value]) => value || value === 0);
    return new URLSearchParams(given).toString();
  }

  // Browsers limit how often the address may change.
  function write() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const now = text();
      if (now === written) return; // the address may be that of a section
      written = now;
      history.replaceState(null, "", `#${now}`);
    }, 250);
  }

  // Comma-separated numbers; NaN for anything else.
  const finite = (part) => (part.trim() && isNumber(Number(part)) ? Number(part) : NaN);
  const numbers = (text) => (text ?? "").split(",").map(finite);

  function readBrush(text) {
    const values = numbers(text);
    if (values.length !== 4 || values.every(Number.isNaN)) return null;
    const open = (k) => (k % 2 ? Infinity : -Infinity);
    return Object.fromEntries(ends.map((end, k) => [end, Number.isNaN(values[k]) ? open(k) : values[k]]));
  }

  function readPair(text) {
    const [label, pred] = numbers(text);
    return names.has(label) && names.has(pred) ? { label, pred } : null;
  }

  function readGroup(column, value) {
    const values = report.groupValues.get(column);
    return values?.includes(value) ? { title: `${column}: ${value}`, column, value, values } : null;
  }

  function read() {
    if (!location.hash.includes("=")) return;
    const given = new URLSearchParams(location.hash.slice(1));
    const klass = Number(given.get("class") ?? -1);
    const [, up, key] = (given.get("sort") ?? "").match(/^(-?)(.*)$/s);
    const brush = payload.views.length ? readBrush(given.get("brush")) : null;
    const tab = given.get("tab") ?? first;
    scatter.restore(given.get("view"), brush);
    Object.assign(choice, {
      tab: report.hasList(tab) && (brush || tab !== "brushed") ? tab : first,
      klass: names.has(klass) ? klass : -1,
      text: (given.get("text") ?? "").slice(0, 500),
      wrong: given.get("wrong") === "1",
      undecided: given.get("undecided") === "1",
      pair: readPair(given.get("pair")),
      group: readGroup(given.get("group"), given.get("value")),
      sort: samples.columns.has(key) ? { key, down: !up } : null,
      limit: CARDS,
    });
    written = location.hash.slice(1);
    report.refilter();
    report.openById(given.get("sample"));
  }

  addEventListener("hashchange", read);
  return { read, write };
}
