// One sample, large: every score with its meaning, the spread over nets, the suggested label, the id.

function makeDialog(report) {
  const { payload, samples } = report;
  const dialog = find("sample");
  let rows = [];
  let at = 0;

  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // on the backdrop
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) go(step);
  });

  function go(step) {
    const next = at + step;
    if (next < 0 || next >= rows.length) return;
    at = next;
    fill(step > 0 ? "next" : "previous");
  }

  function fill(focus) {
    const i = rows[at];
    const id = named(samples.id[i], { class: "id", "data-testid": "dialog-id" });
    const button = (word, step, key) =>
      make(
        "button",
        {
          type: "button",
          "data-testid": key,
          disabled: at + step < 0 || at + step >= rows.length,
          click: () => go(step),
        },
        word,
      );
    const previous = button("← Previous", -1, "previous");
    const next = button("Next →", 1, "next");
    const close = make("button", { type: "button", "data-testid": "close", click: () => dialog.close() }, "Close");
    const curves = sampleCurves(report, i);
    dialog.replaceChildren(
      make("div", { class: "heading" }, title(i), close),
      make(
        "div",
        { class: "body" },
        make(
          "div",
          { class: "look" },
          picture(report, i, "large"),
          make("p", { class: "idline" }, id, copyButton("Copy id", String(samples.id[i]), id)),
          curves?.node,
        ),
        make("div", { class: "wide" }, scoreTable(i)),
      ),
      make("div", { class: "steps" }, previous, make("span", {}, `${whole(at + 1)} of ${whole(rows.length)}`), next),
    );
    curves?.start();
    const wanted = { next, previous }[focus] ?? close;
    (wanted.disabled ? close : wanted).focus();
  }

  function title(i) {
    const parts = [];
    if (samples.label[i] >= 0) parts.push("labelled ", named(report.className(samples.label[i])), ", ");
    parts.push("predicted ", named(report.className(samples.pred[i])));
    if (samples.kind[i] !== UNJUDGED) parts.push(" ", glyph(KINDS[samples.kind[i]]));
    return make("h2", { id: "sample-title", "data-testid": "dialog-title" }, ...parts);
  }

  function scoreTable(i) {
    const body = make("tbody");
    const row = (what, value, meaning) =>
      body.append(
        make(
          "tr",
          {},
          make("th", { scope: "row" }, named(what)),
          make("td", { class: "number" }, value),
          make("td", { class: "meaning" }, meaning),
        ),
      );
    const { points } = payload;
    const suggested = samples.suggested[i];
    if (isNumber(points.suspicion?.[i]))
      row("suspicion", number(points.suspicion[i]), "how much speaks against the label; larger is more suspect");
    if (suggested >= 0)
      row(
        "suggested label",
        named(report.className(suggested)),
        suggested === samples.label[i] ? "the label it has" : "what the label may have to be",
      );
    for (const [key, values] of samples.columns) {
      const score = payload.scores[key];
      const harder = score?.harder ? ` ${score.harder === "larger" ? "Larger" : "Smaller"} is harder.` : "";
      row(score?.title ?? key, withSpread(key, values[i], i), visible(score?.text ?? "") + harder);
    }
    const { rank, rank_low: low, rank_high: high } = points.spread ?? {};
    if (isNumber(rank?.[i])) {
      const between = isNumber(low?.[i]) ? `; between ${whole(low[i])} and ${whole(high[i])} over the nets` : "";
      row("rank", whole(rank[i]), `place among all ${whole(payload.n)} samples by angle, 1 is the hardest${between}`);
    }
    const agreement = points.spread?.agreement?.[i];
    if (isNumber(agreement)) row("agreement", percent(agreement), "share of the nets that give this prediction");
    for (const [column, values] of report.groupValues) row(column, named(values[i] ?? "–"), "group");
    return make("table", { class: "scores" }, body);
  }

  function withSpread(key, value, i) {
    const deviation = payload.points.spread?.[`${key}_sd`]?.[i];
    const write = WRITERS[payload.scores[key]?.kind] ?? number;
    return isNumber(deviation) ? `${write(value)} ± ${write(deviation)}` : write(value);
  }

  return {
    open(i, among) {
      rows = among;
      at = Math.max(0, among.indexOf(i));
      if (!dialog.open) dialog.showModal();
      fill();
    },
    isOpen: () => dialog.open,
  };
}
