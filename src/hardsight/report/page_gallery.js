// The gallery: tabs, filters and cards. It shows what `report.choice` selects and follows the brush.

const CARDS = 48; // drawn at a time

function makeGallery(report) {
  const { payload, samples, choice, review } = report;
  const cells = new Map(); // a card is built once: its picture need not be decoded again while a brush moves
  let listed = []; // the list, filtered
  let rows = []; // those of the list that are shown
  let current = -1; // the row that keys and buttons apply to
  let latest = null; // the list that was shown last
  let anchor = -1; // where a selection with the shift key begins
  const selected = new Set();
  const first = "those with pictures first, the hardest first.";
  const lists = [
    ...payload.lists.map((list) => ({ ...list, noun: "samples in this list" })),
    { key: "all", title: "All drawn", note: `All drawn samples: ${first}`, rows: samples.order, noun: "samples" },
    { key: "brushed", title: "Brushed", note: `The samples inside the brush: ${first}`, noun: "brushed samples" },
  ];
  choice.tab = lists[0].key;
  let before = choice.tab; // where to go when the brush is cleared

  const tab = ({ key, title }) =>
    makeButton(named(title), () => select(key), { role: "tab", keydown: walk, "data-testid": `tab-${key}` });
  const buttons = new Map(lists.map((list) => [list.key, tab(list)]));
  find("tabs").append(...buttons.values());
  find("cards").classList.toggle("textual", payload.pictures.length === 0);
  find("picture-note").textContent = payload.picture_note;
  find("cards").classList.toggle("roomy", [...report.names.values()].some((name) => name.length > 12));
  find("more-cards").addEventListener("click", () => grow(choice.limit + CARDS));
  const filters = makeFilters(report);
  const exports = makeExports(report, () => (selected.size ? chosen() : rows), () => choice.tab);
  const panel = review && makeReviewPanel(report, {
    rows: () => (selected.size ? chosen() : current >= 0 ? [current] : []),
    listed: () => listed,
    selected,
    selectAll: () => pick(rows),
    next(done) {
      if (selected.size) return pick([]);
      const after = rows.indexOf(done[0]) + 1;
      const next = rows.slice(after).find((i) => !review.decision(i));
      go(next ?? rows[Math.min(after, rows.length - 1)]);
    },
    back: (undone) => rows.includes(undone[0]) && go(undone[0]),
    leave: () => go(current, true),
  });
  // Nothing has the focus when the page opens: a key then applies to the card with the ring, if it is visible.
  document.addEventListener("keydown", (event) => {
    const { top, bottom } = find("cards").getBoundingClientRect();
    if (panel && event.target === document.body && top < innerHeight && bottom > 0) reviewKey(event, panel.bar);
  });
  find("cards").closest(".gallery").addEventListener("keydown", (event) => {
    if (event.defaultPrevented || typing(event.target)) return;
    if (panel && reviewKey(event, panel.bar)) return;
    if (event.ctrlKey || event.metaKey || event.altKey || rows.length === 0) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 2, ArrowUp: -2 }[event.key];
    if (step) move(step, event.shiftKey);
    else if (event.key === "x") toggle(current);
    else if (event.key === "Escape" && selected.size) pick([]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  const chosen = () => rows.filter((i) => selected.has(i));

  function walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const open = lists.filter(({ key }) => !buttons.get(key).hidden);
    const at = open.findIndex(({ key }) => key === choice.tab);
    select(open[(at + step + open.length) % open.length].key);
    buttons.get(choice.tab).focus();
    event.preventDefault();
  }

  function select(key) {
    Object.assign(choice, { tab: key, limit: CARDS });
    if (key !== "brushed") before = key;
    refresh();
  }

  function candidates(list) {
    if (list.key === "brushed") return insideBrush(samples, report.view(), choice.brush);
    const ofClass = payload.by_class[list.key]?.[choice.klass];
    return [...(ofClass?.length ? ofClass : list.rows)].filter((i) => samples.match[i]);
  }

  function refresh() {
    if (!choice.brush && choice.tab === "brushed") choice.tab = before;
    for (const [key, button] of buttons) {
      const selected = key === choice.tab;
      button.setAttribute("aria-selected", selected);
      button.tabIndex = selected ? 0 : -1;
      button.hidden = key === "brushed" && !choice.brush;
    }
    const list = lists.find(({ key }) => key === choice.tab);
    listed = candidates(list);
    if (choice.sort) listed = inOrder(listed, samples.columns.get(choice.sort.key), choice.sort.down);
    const [pictured, bare] = [[], []];
    for (const i of listed)
      if (!choice.undecided || !review?.decision(i)) (samples.picture[i] >= 0 ? pictured : bare).push(i);
    rows = pictured.concat(bare);
    const shown = new Set(rows);
    for (const i of selected) if (!shown.has(i)) selected.delete(i);
    if (!shown.has(current) || list !== latest) current = rows.find((i) => !review?.decision(i)) ?? rows[0] ?? -1;
    latest = list; // a list begins with its first undecided sample
    find("cards").setAttribute("aria-label", visible(list.title));
    find("list-note").textContent = visible(list.note);
    filters.refresh();
    show();
    report.changed();
  }

  function statusText() {
    const { noun } = lists.find(({ key }) => key === choice.tab);
    if (rows.length === 0) return filtering(choice) ? "No sample matches these filters." : `No ${noun}.`;
    const shown = choice.limit < rows.length ? `; ${whole(choice.limit)} are shown` : "";
    const pictures = rows.filter((i) => samples.picture[i] >= 0).length;
    return `${whole(pictures)} of ${whole(rows.length)} ${noun} have pictures${shown}.`;
  }

  function cell(i) {
    const events = { click: (event) => click(event, i), check: (event) => check(event, i), enter: () => enter(i) };
    if (!cells.has(i)) cells.set(i, makeCell(report, i, events));
    mark(i);
    return cells.get(i).node;
  }

  function show() {
    if (cells.size > 1500) cells.clear();
    const nodes = rows.slice(0, choice.limit).map(cell);
    find("cards").replaceChildren(...(nodes.length ? nodes : [nothing()]));
    count();
    follow();
  }

  // More cards, after the existing ones: nothing moves, and the focus stays.
  function grow(limit) {
    const from = choice.limit;
    choice.limit = Math.min(limit, Math.max(rows.length, CARDS));
    find("cards").append(...rows.slice(from, choice.limit).map(cell));
    count();
  }

  function count() {
    const left = rows.length - choice.limit;
    find("more-cards").hidden = left <= 0;
    find("more-cards").textContent = moreOf(CARDS, left);
    find("gallery-status").textContent = statusText();
  }

  function nothing() {
    const elsewhere = choice.tab !== "all" && samples.match.includes(1) && filtering(choice);
    const all = makeButton("Look in all drawn samples", () => select("all"), { "data-testid": "look-in-all" });
    return make("p.nothing", "Nothing to show here. ", elsewhere && all);
  }

  // A card's decision, its selection, and whether keys apply to it.
  function mark(i) {
    const parts = cells.get(i);
    if (!parts) return;
    parts.node.classList.toggle("current", i === current);
    parts.card.tabIndex = i === current ? 0 : -1;
    parts.box.checked = selected.has(i);
    if (!review) return;
    parts.node.dataset.decision = review.decision(i)?.action ?? "";
    parts.verdict.textContent = review.verdict(i);
  }

  // After a change of the selection, of the current row, or of decisions.
  function follow() {
    exports.refresh(selected.size || rows.length, selected.size > 0);
    panel?.refresh();
  }

  function enter(i) {
    if (i === current) return;
    const left = current;
    current = i;
    for (const each of [left, i]) mark(each);
    follow();
  }

  // Make a row current and show it; the focus moves there unless it is on a decision button.
  function go(i, focus = !document.activeElement?.closest(".decide")) {
    const at = rows.indexOf(i);
    if (at < 0) return;
    if (at >= choice.limit) grow(at + CARDS);
    enter(i);
    const { card } = cells.get(i);
    if (focus) card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest", inline: "nearest" });
    const hidden = (panel?.bar.node.getBoundingClientRect().bottom ?? 0) - card.getBoundingClientRect().top;
    if (hidden > 0) scrollBy(0, -hidden - 8); // out from under the sticky bar
  }

  // By one card, or (2, −2) to the next one below or above, wherever the layout puts it.
  function move(step, extend) {
    const from = rows.indexOf(current);
    let at = from + Math.sign(step);
    if (Math.abs(step) === 2) {
      const { offsetTop, offsetLeft, offsetWidth } = cells.get(current).node;
      const beside = (i) => {
        const node = cells.get(i)?.node;
        return node && (node.offsetTop === offsetTop || Math.abs(node.offsetLeft - offsetLeft) > offsetWidth / 2);
      };
      while (at in rows && at < choice.limit && beside(rows[at])) at += Math.sign(step);
    }
    if (!(at in rows)) return;
    if (extend) pick([current, rows[at], ...selected]);
    go(rows[at], true);
  }

  function pick(wanted) {
    const changed = new Set([...selected, ...wanted]);
    selected.clear();
    for (const i of wanted) selected.add(i);
    for (const i of changed) mark(i);
    follow();
  }

  function toggle(i) {
    anchor = i;
    pick(selected.has(i) ? [...selected].filter((each) => each !== i) : [...selected, i]);
  }

  // With the shift key, everything from the last selected card, or from the current one.
  function range(i) {
    const [from, to] = [rows.indexOf(rows.includes(anchor) ? anchor : current), rows.indexOf(i)].sort((a, b) => a - b);
    pick([...selected, ...rows.slice(from, to + 1)]);
  }

  function click(event, i) {
    if (event.shiftKey) range(i);
    else if (event.ctrlKey || event.metaKey) toggle(i);
    else report.open(i, rows);
    enter(i);
  }

  function check(event, i) {
    if (event.shiftKey) range(i);
    else toggle(i);
    enter(i);
  }

  return {
    refresh,
    select,
    has: (key) => buttons.has(key),
    rows: () => rows,
    go,
    decided(changed) {
      for (const i of changed) mark(i);
      panel.refresh();
    },
    // The brush has come, moved or gone.
    follow() {
      choice.limit = CARDS;
      if (choice.brush) choice.tab = "brushed";
      refresh();
    },
  };
}

function makeFilters(report) {
  const { choice, names, payload, samples } = report;
  const [text, wrong, undecided, clear] = ["text", "wrong", "undecided", "clear"].map((name) => find(`${name}-filter`));
  const hint = `${whole(names.size)} classes: type a name`;
  const klass = names.size > 40 ? searchableClasses(names, hint, "choose-class") : listedClasses(names);
  find("class-filter").replaceWith(klass.node);
  const apply = (change) => {
    Object.assign(choice, change, { limit: CARDS });
    report.refilter();
  };
  klass.node.addEventListener("input", () => klass.read() !== choice.klass && apply({ klass: klass.read() }));
  text.addEventListener("input", () => apply({ text: text.value.trim() }));
  wrong?.addEventListener("change", () => apply({ wrong: wrong.checked }));
  clear.addEventListener("click", () => apply(noFilter()));
  const arrange = (change) => {
    Object.assign(choice, change, { limit: CARDS }); // the scatter plot does not change
    report.relist();
  };
  undecided?.addEventListener("change", () => arrange({ undecided: undecided.checked }));
  const keys = [...samples.columns.keys()];
  const sortBy = (key) => arrange({ sort: key ? { key, down: payload.scores[key].harder !== "smaller" } : null });
  const titles = ["as listed", ...keys.map((key) => scoreTitle(payload, key))];
  const order = makeSelect(titles, (k) => sortBy(keys[k - 1]), "sort");
  const reverse = () => arrange({ sort: { ...choice.sort, down: !choice.sort.down } });
  const turn = makeButton("", reverse, { class: "quiet", "data-testid": "direction" });
  find("sort").replaceWith(order, turn);

  return {
    refresh() {
      if (document.activeElement !== text) text.value = choice.text;
      if (wrong) wrong.checked = choice.wrong;
      if (undecided) undecided.checked = choice.undecided;
      order.value = choice.sort ? keys.indexOf(choice.sort.key) + 1 : 0;
      turn.hidden = !choice.sort;
      turn.textContent = choice.sort?.down ? "↓ largest first" : "↑ smallest first";
      klass.write(choice.klass);
      clear.hidden = !filtering(choice);
      const { group, pair } = choice;
      const selected = pair && `${report.className(pair.label)} predicted as ${report.className(pair.pred)}`;
      const title = selected ?? group?.title;
      clear.textContent = title ? `Clear filters (${visible(title)})` : "Clear filters";
    },
  };
}

function listedClasses(names) {
  const options = [...names].map(([k, name]) => make("option", { value: k }, name));
  const node = make("select", { "data-testid": "choose-class" }, make("option", { value: -1 }, "all"), options);
  return { node, read: () => Number(node.value), write: (k) => (node.value = String(k)) };
}

// A field that takes a class by its name; part of a name is enough if one class matches.
function searchableClasses(names, placeholder, testid) {
  const index = new Map([...names].map(([k, name]) => [name, k]));
  const id = `${testid}-${document.querySelectorAll("datalist").length}`;
  const options = make("datalist", { id });
  const field = { list: id, type: "search", autocomplete: "off", spellcheck: "false" };
  const box = make("input", { ...field, placeholder, "data-testid": testid });
  // Thousands of options are made when the field is used, not while the page opens.
  const fill = () => options.append(...[...names.values()].map((name) => make("option", { value: name })));
  box.addEventListener("focus", fill, { once: true });
  return {
    node: make("span", box, options),
    read: () => index.get(box.value) ?? -1,
    match() {
      const text = box.value.trim().toLowerCase();
      const among = (test) => [...names].filter(([, name]) => test(name.toLowerCase()));
      const tests = [(name) => name === text, (name) => name.startsWith(text), (name) => name.includes(text)];
      const matching = text ? tests.map(among).find((each) => each.length > 0) : null;
      return index.get(box.value) ?? (matching?.length === 1 ? matching[0][0] : -1);
    },
    write(k, always) {
      if (k >= 0) box.value = names.get(k);
      else if (always || document.activeElement !== box) box.value = "";
    },
  };
}

// A card with its box for the selection and the verdict of the review.
function makeCell(report, i, { click, check, enter }) {
  const card = makeCard(report, i, click);
  card.addEventListener("focus", enter);
  const attributes = { type: "checkbox", tabindex: "-1", "aria-label": `Select ${visible(report.samples.id[i])}` };
  const box = make("input", { ...attributes, click: check, "data-testid": "select" });
  const verdict = make("bdi.verdict");
  return { node: make("div.cell", card, box, verdict), card, box, verdict };
}

function makeCard(report, i, click) {
  const { samples, payload } = report;
  const figure = (key) => make("span", `${shortTitle(payload, key)} ${number(samples.columns.get(key)[i])}`);
  const keys = [...new Set([samples.hardness, "confidence", "hsf"])].filter((key) => samples.columns.has(key));
  const [enter, leave] = [() => report.point(i), () => report.point(-1)];
  const events = { click, pointerenter: enter, pointerleave: leave, focus: enter, blur: leave };
  const state = { type: "button", class: `card ${KINDS[samples.kind[i]]}`, "aria-label": describe(report, i) };
  const suggested = samples.suggested[i] ?? -1;
  const lines = labelLines(report, i);
  if (suggested >= 0 && suggested !== samples.label[i]) lines.push(labelLine("perhaps", report.className(suggested)));
  if (samples.planted[i] >= 0) lines.push(labelLine("changed from", report.className(samples.planted[i])));
  return make(
    "button",
    { ...state, ...events, "data-testid": "card", "data-row": i },
    thumbnail(report, i, "frame"),
    make("span.facts", lines),
    make("span.figures", keys.map(figure)),
  );
}

// The label, where there is one, and the prediction.
function labelLines({ samples, className }, i) {
  const label = samples.label[i] >= 0 ? [labelLine("labeled", className(samples.label[i]))] : [];
  return [...label, labelLine("predicted", className(samples.pred[i]), KINDS[samples.kind[i]])];
}

const labelLine = (word, name, kind = "plain") =>
  make("span.line", { title: name }, make("span.word", word), kind !== "plain" && glyph(kind), named(name));

function thumbnail({ samples, payload }, i, style) {
  const at = samples.picture[i];
  if (at < 0) return make("span", { class: `${style} bare` }, named(samples.id[i]));
  const image = make("img", { src: payload.pictures[at], alt: "", decoding: "async", draggable: "false" });
  return make("span", { class: style }, image);
}

function describe({ samples, payload, className }, i) {
  const label = samples.label[i] >= 0 ? `labeled ${className(samples.label[i])}, ` : "";
  const keys = [...new Set([samples.hardness, "confidence"])].filter((key) => samples.columns.has(key));
  const scores = keys.map((key) => `, ${shortTitle(payload, key)} ${number(samples.columns.get(key)[i])}`);
  return `${label}predicted ${className(samples.pred[i])}${scores.join("")}, ${visible(samples.id[i])}`;
}

const scoreTitle = (payload, key) => visible(payload.scores[key].title);
const shortTitle = (payload, key) => ({ hsf: "people", confidence: "conf." })[key] ?? scoreTitle(payload, key);
