// The gallery: tabs, filters and cards. It shows what `report.choice` selects and follows the brush.

const CARDS = 48; // drawn at a time

function makeGallery(report) {
  const { payload, samples, choice } = report;
  const cards = new Map(); // a card is built once: its picture need not be decoded again while a brush moves
  let rows = [];
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
  find("more-cards").addEventListener("click", () => {
    choice.limit += CARDS;
    show();
  });
  const filters = makeFilters(report);

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
    const [pictured, bare] = [[], []];
    for (const i of candidates(list)) (samples.picture[i] >= 0 ? pictured : bare).push(i);
    rows = pictured.concat(bare);
    find("cards").setAttribute("aria-label", visible(list.title));
    find("list-note").textContent = visible(list.note);
    find("gallery-status").textContent = statusText(list, pictured.length);
    filters.refresh();
    show();
  }

  function statusText({ noun }, pictures) {
    if (rows.length === 0) return filtering(choice) ? "No sample matches these filters." : `No ${noun}.`;
    const shown = choice.limit < rows.length ? `; ${whole(choice.limit)} are shown` : "";
    return `${whole(pictures)} of ${whole(rows.length)} ${noun} have pictures${shown}.`;
  }

  function show() {
    if (cards.size > 1500) cards.clear();
    const nodes = rows.slice(0, choice.limit).map((i) => {
      if (!cards.has(i)) cards.set(i, makeCard(report, i, () => report.open(i, rows)));
      return cards.get(i);
    });
    find("cards").replaceChildren(...(nodes.length ? nodes : [nothing()]));
    const left = rows.length - nodes.length;
    find("more-cards").hidden = left <= 0;
    find("more-cards").textContent = moreOf(CARDS, left);
  }

  function nothing() {
    const elsewhere = choice.tab !== "all" && samples.match.includes(1) && filtering(choice);
    const all = makeButton("Look in all drawn samples", () => select("all"), { "data-testid": "look-in-all" });
    return make("p.nothing", "Nothing to show here. ", elsewhere && all);
  }

  return {
    refresh,
    select,
    has: (key) => buttons.has(key),
    // The brush has come, moved or gone.
    follow() {
      choice.limit = CARDS;
      if (choice.brush) choice.tab = "brushed";
      refresh();
    },
  };
}

function makeFilters(report) {
  const { choice, names } = report;
  const [text, wrong, clear] = ["text-filter", "wrong-filter", "clear-filters"].map(find);
  const klass = names.size > 40 ? searchableClasses(names) : listedClasses(names);
  find("class-filter").replaceWith(klass.node);
  const apply = (change) => {
    Object.assign(choice, change, { limit: CARDS });
    report.refilter();
  };
  klass.node.addEventListener("input", () => klass.read() !== choice.klass && apply({ klass: klass.read() }));
  text.addEventListener("input", () => apply({ text: text.value.trim() }));
  wrong?.addEventListener("change", () => apply({ wrong: wrong.checked }));
  clear.addEventListener("click", () => apply(noFilter()));

  return {
    refresh() {
      if (document.activeElement !== text) text.value = choice.text;
      if (wrong) wrong.checked = choice.wrong;
      klass.write(choice.klass);
      clear.hidden = !filtering(choice);
      clear.textContent = choice.group ? `Clear filters (${visible(choice.group.title)})` : "Clear filters";
    },
  };
}

function listedClasses(names) {
  const options = [...names].map(([k, name]) => make("option", { value: k }, name));
  const node = make("select", { "data-testid": "choose-class" }, make("option", { value: -1 }, "all"), options);
  return { node, read: () => Number(node.value), write: (k) => (node.value = String(k)) };
}

function searchableClasses(names) {
  const index = new Map([...names].map(([k, name]) => [name, k]));
  const options = make("datalist", { id: "class-names" });
  const field = { list: "class-names", type: "search", autocomplete: "off", spellcheck: "false" };
  const placeholder = `${whole(names.size)} classes: type a name`;
  const box = make("input", { ...field, placeholder, "data-testid": "choose-class" });
  // Thousands of options are made when the field is used, not while the page opens.
  const fill = () => options.append(...[...names.values()].map((name) => make("option", { value: name })));
  box.addEventListener("focus", fill, { once: true });
  return {
    node: make("span", box, options),
    read: () => index.get(box.value) ?? -1,
    write(k) {
      if (k >= 0) box.value = names.get(k);
      else if (document.activeElement !== box) box.value = "";
    },
  };
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
  make("span.line", make("span.word", word), kind !== "plain" && glyph(kind), named(name));

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
