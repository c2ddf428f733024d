// Review: a person's decisions about labels. They are stored in the browser under the run's identity and leave the
// page as the CSV that `hardsight clean --decisions` reads; the browser stores the same text.

const KEYS = { k: "keep", r: "relabel", d: "drop", s: "review", u: "undo" };
const UNKEPT = "This browser stores nothing for this page: download your decisions before you close it.";
const VERDICTS = { keep: "keep", relabel: "→", drop: "drop", review: "skipped" };
function makeReview(report) {
  const { payload, samples, names } = report;
  const given = payload.label_errors?.review;
  if (!given) return null;
  const key = `hardsight-decisions-${given.key}`;
  const rowOf = new Map(Array.from(samples.exact, (id, i) => [id, i]));
  const texts = new Map([...names.keys()].map((k) => [k, k in given.labels ? given.labels[k] : payload.classes[k]]));
  const classes = new Map([...names].filter(([k]) => texts.get(k) !== null)); // those that the data have
  const classOf = new Map([...texts].map(([k, text]) => [text, k]));
  const decisions = new Map(); // of a row: {action, label}, a class code or −1
  const past = []; // for undo: [row, decision before] pairs of each step
  const bars = [];
  let problem = "";

  const table = () => [
    csvLine(["id", "action", "new_label"]),
    ...Array.from(decisions, ([i, { action, label }]) => csvLine([samples.exact[i], action, texts.get(label) ?? ""])),
  ];

  // Load a CSV; returns how many of its rows match nothing on this page.
  function read(text) {
    let unknown = 0;
    const changes = new Map();
    for (const row of readCsv(text)) {
      const [i, action] = [rowOf.get(row.get("id")), row.get("action")];
      const label = action === "relabel" ? (classOf.get(row.get("new_label")) ?? -1) : -1;
      if (i === undefined || !Object.hasOwn(VERDICTS, action) || (action === "relabel" && label < 0)) unknown++;
      else changes.set(i, { action, label });
    }
    return { changes, unknown };
  }

  // Storage may be unavailable to files and private windows, or full: decisions then last as long as the page.
  function load() {
    decisions.clear();
    try {
      for (const [i, decision] of read(localStorage.getItem(key) ?? "").changes) decisions.set(i, decision);
    } catch {
      problem = UNKEPT;
    }
  }

  function save() {
    try {
      if (decisions.size) localStorage.setItem(key, table().join("\n"));
      else localStorage.removeItem(key);
      problem = "";
    } catch {
      problem = UNKEPT;
    }
  }

  const changed = (rows) => {
    report.decided(rows);
    for (const bar of bars) bar.refresh();
  };

  // changes: decisions by row, null for none; undoable as one step.
  function apply(changes) {
    past.push(Array.from(changes.keys(), (i) => [i, decisions.get(i) ?? null]));
    put(changes);
  }

  function put(changes) {
    for (const [i, decision] of changes) decision ? decisions.set(i, decision) : decisions.delete(i);
    save();
    changed([...changes.keys()]);
  }

  function undo() {
    const step = past.pop();
    if (step) put(new Map(step));
    return step?.map(([i]) => i) ?? [];
  }

  // The class that a relabeled sample gets unless a person chooses another.
  function proposal(i) {
    const decided = decisions.get(i);
    const wanted = [decided?.label ?? -1, samples.suggested[i] ?? -1, samples.pred[i]];
    return wanted.find((k) => classes.has(k) && k !== samples.label[i]) ?? -1;
  }

  addEventListener("storage", (event) => {
    if (event.key !== key) return; // decided in another window
    const before = [...decisions.keys()];
    load();
    changed([...new Set([...before, ...decisions.keys()])]);
  });
  load();

  return {
    decision: (i) => decisions.get(i),
    size: () => decisions.size,
    problem: () => problem,
    // {decided, skipped} among some rows.
    count(rows) {
      const skipped = rows.filter((i) => decisions.get(i)?.action === "review").length;
      return { skipped, decided: rows.filter((i) => decisions.has(i)).length - skipped };
    },
    verdict(i) {
      const { action, label } = decisions.get(i) ?? {};
      return action ? VERDICTS[action] + (action === "relabel" ? ` ${report.className(label)}` : "") : "";
    },
    apply,
    undo,
    undoable: () => past.length > 0,
    proposal,
    classes,
    given,
    csv: table,
    read,
    clear: () => apply(new Map(Array.from(decisions.keys(), (i) => [i, null]))),
    add: (bar) => bars.push(bar),
  };
}

// The buttons of a review. target: {rows() to decide on, next(rows) after it, back(rows) after undo, leave() the field}.
function makeReviewBar(report, target) {
  const { review, samples } = report;
  const message = make("span.status", { role: "status", "data-testid": "review-message" });
  const picker = searchableClasses(review.classes, "class to relabel to", "new-label");
  const field = picker.node.querySelector("input");
  let edited = false;
  field.addEventListener("input", () => (edited = true));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") act("relabel");
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    if (message.textContent === "") target.leave();
  });

  function act(action) {
    message.textContent = "";
    if (action === "undo") return target.back(review.undo());
    const rows = target.rows();
    const long = rows.filter((i) => samples.exact[i] === null);
    const label = edited && action === "relabel" ? picker.match() : null;
    if (label === -1) return say(`No class, or several, match “${visible(field.value)}”.`);
    const changes = new Map();
    for (const i of rows) {
      const wanted = label ?? review.proposal(i);
      if (samples.exact[i] === null || (action === "relabel" && wanted < 0)) continue;
      const relabel = action === "relabel" && wanted !== samples.label[i]; // to the label it has is to keep it
      changes.set(i, relabel ? { action, label: wanted } : { action: action === "relabel" ? "keep" : action, label: -1 });
    }
    if (changes.size) review.apply(changes);
    if (long.length) say(`${counted(long.length, "id is", "ids are")} too long for this page: use actions.csv.`);
    else if (changes.size < rows.length) say("Choose a class: there is no proposal.", true);
    if (changes.size === rows.length) target.next(rows);
  }

  function say(text, choose) {
    message.textContent = text;
    if (choose) field.focus();
  }

  const hint = (letter) => make("kbd", { "aria-hidden": "true" }, letter);
  const button = (name, title) => {
    const letter = Object.keys(KEYS).find((each) => KEYS[each] === name);
    const attributes = { "data-testid": `review-${name}`, "aria-keyshortcuts": letter };
    return makeButton([title, hint(letter)], () => act(name), attributes);
  };
  const [keep, relabel, drop] = [button("keep", "Keep"), button("relabel", "Relabel"), button("drop", "Drop")];
  const [skip, undo] = [button("review", "Skip"), button("undo", "Undo")];
  const into = make("label", "to ", picker.node, hint("c"));
  const bar = {
    node: make("div.decide", { role: "group", "aria-label": "Decide" }, keep, relabel, into, drop, skip, undo, message),
    act,
    choose() {
      field.focus();
      field.select();
    },
    // Another sample, or another decision.
    refresh() {
      const rows = target.rows();
      const proposals = new Set(rows.map(review.proposal));
      edited = false;
      picker.write(proposals.size === 1 ? [...proposals][0] : -1, true);
      field.placeholder = proposals.size > 1 ? "each its proposal" : "choose a class";
      undo.disabled = !review.undoable();
      for (const node of [keep, relabel, drop, skip]) node.disabled = rows.length === 0;
    },
    quiet: () => (message.textContent = ""),
  };
  review.add(bar);
  return bar;
}

// What a key does in a review: true if it did something.
function reviewKey(event, bar) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return false;
  const action = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (action) bar.act(action);
  else if (event.key === "c") bar.choose();
  else return false;
  event.preventDefault();
  return true;
}

const typing = (node) => Boolean(node.closest?.("input:not([type=checkbox]), select, textarea"));

// The review above the cards: progress, buttons, and how decisions leave the page. target: what a bar needs, and
// {listed() rows, selected, selectAll()}.
function makeReviewPanel(report, target) {
  const { review } = report;
  const { file: name, command } = review.given;
  const bar = makeReviewBar(report, target);
  const meter = make("progress", { "aria-hidden": "true" });
  const count = make("span.count", { role: "status", "data-testid": "progress" });
  const note = make("span.status", { role: "status", "data-testid": "review-note" });
  const quiet = (text, click, testid) => makeButton(text, click, { class: "quiet", "data-testid": testid });
  const all = quiet("Select all", () => target.selectAll(), "select-all");
  const save = quiet("", write, "download-decisions");
  const clear = quiet("Start over", () => review.clear(), "clear-decisions");
  const chosen = { type: "file", accept: ".csv", hidden: true, change: load };
  const file = make("input", { ...chosen, "data-testid": "decisions-file" });
  const open = quiet("Load decisions", () => file.click(), "load-decisions");
  const code = make("code", { "data-testid": "apply-command" }, visible(command));
  const then = makeNote(`Saved as ${name}. Now write a cleaned copy; your data stay unchanged:`);
  const line = make("div.command", make("pre", code), copyButton("Copy", command, code));
  const apply = make("div", { hidden: true }, then, line);

  function write() {
    download(name, review.csv());
    apply.hidden = false;
  }

  async function load() {
    const { changes, unknown } = review.read(await file.files[0].text());
    file.value = ""; // so that the same file can be loaded again
    if (changes.size) review.apply(changes);
    const left = unknown ? `; ${counted(unknown, "row fits", "rows fit")} no sample, action or class of this page` : "";
    note.textContent = `${counted(changes.size, "decision")} loaded${left}.`;
  }

  find("review").append(
    make("div.tools", count, meter, all, save, open, file, clear, note),
    apply,
  );
  find("review").after(bar.node);
  bar.node.append(make("span.note", "Arrows move, x selects, Enter enlarges."));
  find("review").hidden = false;
  return {
    bar,
    refresh() {
      const rows = target.listed();
      const { decided, skipped } = review.count(rows);
      const parts = [`${whole(decided)} of ${whole(rows.length)} decided`, skipped > 0 && `${whole(skipped)} skipped`];
      parts.push(target.selected.size > 0 && `${whole(target.selected.size)} selected`);
      count.textContent = parts.filter(Boolean).join(", ");
      meter.max = Math.max(rows.length, 1);
      meter.value = decided;
      save.disabled = clear.disabled = review.size() === 0;
      save.textContent = `Download ${counted(review.size(), "decision")}`;
      if (review.problem()) note.textContent = review.problem();
      bar.refresh();
    },
  };
}
