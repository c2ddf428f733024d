// One sample, large: every score with its meaning, the spread over nets, the suggested label, the id.

function makeDialog(report) {
  const { payload, samples } = report;
  const { points, scores } = payload;
  const dialog = find("sample");
  let rows = [];
  let at = 0;

  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // on the backdrop
  dialog.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || typing(event.target) || (bar && reviewKey(event, bar))) return;
    go({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0);
  });
  dialog.addEventListener("close", () => {
    report.changed();
    report.closed(rows[at], rows);
  });
  const bar = report.review && makeReviewBar(report, {
    rows: () => (dialog.open ? [rows[at]] : []),
    next() {
      const next = rows.findIndex((i, k) => k > at && !report.review.decision(i));
      go(next > 0 ? next - at : 1);
    },
    back: ([i]) => go(rows.indexOf(i) - at),
    leave: () => dialog.querySelector("[data-testid=close]").focus(),
  });
  const verdict = make("bdi.verdict", { "data-testid": "dialog-verdict" });

  function go(step) {
    if (step === 0 || !(at + step in rows)) return;
    at += step;
    fill(step);
    report.changed();
  }

  // step: the direction of the last move, whose button keeps the focus.
  function fill(step = 0) {
    const i = rows[at];
    const active = document.activeElement;
    const id = named(samples.id[i], { class: "id", "data-testid": "dialog-id" });
    const turn = (text, by, key) => makeButton(text, () => go(by), { "data-testid": key, disabled: !(at + by in rows) });
    const [previous, next] = [turn("← Previous", -1, "previous"), turn("Next →", 1, "next")];
    const close = makeButton("Close", () => dialog.close(), { "data-testid": "close" });
    const curves = sampleCurves(payload, i);
    const line = make("p.idline", id, copyButton("Copy id", samples.exact[i] ?? samples.id[i], id));
    dialog.replaceChildren(
      make("div.heading", heading(i), close),
      ...(bar ? [bar.node] : []),
      make(
        "div.body",
        make("div", thumbnail(report, i, "large"), line, curves?.node),
        make("div", sampleDetails(report, i), make("div.wide", scoreTable(i))),
      ),
      make("div.steps", previous, make("span", `${whole(at + 1)} of ${whole(rows.length)}`), next),
    );
    curves?.start();
    bar?.quiet();
    bar?.refresh();
    mark();
    if (bar?.node.contains(active)) return active.focus(); // a button used to decide keeps the focus
    const focused = { 1: next, "-1": previous }[step] ?? close;
    (focused.disabled ? close : focused).focus();
  }

  function heading(i) {
    const label = samples.label[i] >= 0 ? ["labeled ", named(report.className(samples.label[i])), ", "] : [];
    const sign = samples.kind[i] === UNJUDGED ? [] : [" ", glyph(KINDS[samples.kind[i]])];
    const prediction = ["predicted ", named(report.className(samples.pred[i]))];
    return make("h2", { id: "sample-title", "data-testid": "dialog-title" }, label, prediction, sign, bar && verdict);
  }

  function mark() {
    if (!bar || !dialog.open) return;
    verdict.dataset.decision = report.review.decision(rows[at])?.action ?? "";
    verdict.textContent = report.review.verdict(rows[at]);
  }

  function scoreTable(i) {
    const lines = [];
    const row = (title, value, meaning) => lines.push([title, value, meaning]);
    const suggested = samples.suggested[i] ?? -1;
    const meaning = suggested === samples.label[i] ? "the label it has" : "possibly the correct label";
    if (suggested >= 0) row("suggested label", named(report.className(suggested)), meaning);
    const before = samples.planted[i] ?? -1;
    if (before >= 0) row("label before", named(report.className(before)), "we changed this label on purpose");
    for (const [key, values] of samples.columns) {
      const { title, text, harder, kind } = scores[key];
      if (kind === "place") continue; // on a map
      const direction = harder ? ` ${harder === "larger" ? "Larger" : "Smaller"} is harder.` : "";
      row(title, withSpread(key, values[i], i), visible(text) + direction);
    }
    const { rank, rank_low: low, rank_high: high, agreement } = points.spread;
    if (isNumber(rank?.[i])) {
      const between = isNumber(low?.[i]) ? `; between ${whole(low[i])} and ${whole(high[i])} over the nets` : "";
      row("rank", whole(rank[i]), `place among all ${whole(payload.n)} samples by angle, 1 is the hardest${between}`);
    }
    if (isNumber(agreement?.[i])) row("agreement", percent(agreement[i]), "share of the nets that give this prediction");
    for (const [column, values] of report.groupValues) row(column, named(values[i] ?? "–"), "group");
    const body = lines.map(([title, value, meaning]) =>
      make("tr", make("th", { scope: "row" }, make("abbr", { title: meaning }, named(title))), make("td.number", value)),
    );
    return make("table.scores", make("tbody", body));
  }

  function withSpread(key, value, i) {
    const deviation = points.spread[`${key}_sd`]?.[i];
    const write = WRITERS[scores[key].kind];
    return isNumber(deviation) ? `${write(value)} ± ${write(deviation)}` : write(value);
  }

  return {
    open(i, among) {
      rows = among;
      at = Math.max(0, among.indexOf(i));
      if (!dialog.open) dialog.showModal();
      fill();
      report.changed();
    },
    mark,
    isOpen: () => dialog.open,
    opened: () => (dialog.open ? rows[at] : -1),
  };
}
