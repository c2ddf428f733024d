// The gallery: tabs, filters and cards. It shows what `report.choice` says and follows the brush.

const CARDS = 48; // drawn at a time

function makeGallery(report) {
  const { payload, samples, choice } = report;
  const cards = new Map(); // a card is built once: its picture need not be decoded again while a brush moves
  let rows = [];

  const lists = [
    ...payload.lists.map((list) => ({ ...list, noun: "samples in this list" })),
    {
      key: "all",
      title: "All drawn",
      note: "Every sample that is drawn on this page: those with pictures first, the hardest first.",
      rows: samples.order,
      noun: "samples",
    },
    {
      key: "brushed",
      title: "Brushed",
      note: "The samples inside the brush: those with pictures first, the hardest first.",
      rows: [],
      noun: "brushed samples",
    },
  ];
  choice.tab = lists[0].key;
  let before = choice.tab; // where to go when the brush is cleared

  const buttons = new Map(lists.map((list) => [list.key, tabButton(list)]));
  find("tabs").append(...buttons.values());
  find("cards").classList.toggle("textual", payload.pictures.length === 0);
  find("cards").classList.toggle(
    "roomy",
    report.names.some((name) => name.length > 12),
  );
  find("more-cards").addEventListener("click", () => {
    choice.limit += CARDS;
    show();
  });
  const filters = makeFilters(report);

  function tabButton(list) {
    const go = () => select(list.key);
    const title = named(list.title);
    return make(
      "button",
      { type: "button", role: "tab", "data-testid": `tab-${list.key}`, click: go, keydown: walk },
      title,
    );
  }

  function walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const open = lists.filter((list) => !buttons.get(list.key).hidden);
    const at = open.findIndex((list) => list.key === choice.tab);
    select(open[(at + step + open.length) % open.length].key);
    buttons.get(choice.tab).focus();
    event.preventDefault();
  }

  function select(key) {
    choice.tab = key;
    choice.limit = CARDS;
    if (key !== "brushed") before = key;
    refresh();
  }

  function candidates(list) {
    if (list.key === "brushed") return insideBrush(samples, report.view(), choice.brush);
    const perClass = Object.hasOwn(payload.by_class, list.key) ? payload.by_class[list.key] : null;
    const ofClass = choice.klass >= 0 ? perClass?.[choice.klass] : null;
    return (ofClass?.length ? ofClass : list.rows).filter((i) => samples.match[i]);
  }

  function refresh() {
    if (!choice.brush && choice.tab === "brushed") choice.tab = before;
    for (const [key, button] of buttons) {
      const selected = key === choice.tab;
      button.setAttribute("aria-selected", selected);
      button.tabIndex = selected ? 0 : -1;
      button.hidden = key === "brushed" && !choice.brush;
    }
    const list = lists.find((one) => one.key === choice.tab);
    const sorted = picturesFirst(candidates(list), samples.picture);
    rows = sorted.rows;
    find("cards").setAttribute("aria-label", visible(list.title));
    find("list-note").textContent = visible(list.note ?? "");
    find("gallery-status").textContent = sentence(list, sorted);
    filters.refresh();
    show();
  }

  function sentence(list, { rows: found, pictures }) {
    if (found.length === 0) return filtering(choice) ? "No sample matches these filters." : `No ${list.noun}.`;
    const drawn = Math.min(choice.limit, found.length);
    const part = drawn < found.length ? `; ${whole(drawn)} are shown` : "";
    return `${whole(pictures)} of ${whole(found.length)} ${list.noun} have pictures${part}.`;
  }

  function show() {
    const shown = rows.slice(0, choice.limit);
    if (cards.size > 1500) cards.clear();
    const nodes = shown.map((i) => {
      if (!cards.has(i))
        cards.set(
          i,
          makeCard(report, i, () => report.open(i, rows)),
        );
      return cards.get(i);
    });
    if (nodes.length === 0) nodes.push(nothing());
    find("cards").replaceChildren(...nodes);
    const left = rows.length - shown.length;
    find("more-cards").hidden = left <= 0;
    find("more-cards").textContent = moreOf(CARDS, left);
  }

  function nothing() {
    const elsewhere = choice.tab !== "all" && samples.match.includes(1) && filtering(choice);
    const all = { type: "button", "data-testid": "look-in-all", click: () => select("all") };
    return make(
      "p",
      { class: "nothing" },
      "Nothing to show here. ",
      elsewhere ? make("button", all, "Look in all drawn samples") : null,
    );
  }

  return {
    refresh,
    select,
    has: (key) => lists.some((list) => list.key === key),
    // The brush has come, moved or gone.
    follow() {
      choice.limit = CARDS;
      if (choice.brush && choice.tab !== "brushed") choice.tab = "brushed";
      refresh();
    },
  };
}

function makeFilters(report) {
  const { choice, names } = report;
  const text = find("text-filter");
  const wrong = find("wrong-filter");
  const klass = names.length > 40 ? searchableClasses(names) : listedClasses(names);
  find("class-filter").replaceWith(klass.node);
  const apply = () => {
    choice.limit = CARDS;
    report.refilter();
  };
  klass.node.addEventListener("input", () => {
    const chosen = klass.read();
    if (chosen === choice.klass) return;
    choice.klass = chosen;
    apply();
  });
  text.addEventListener("input", () => {
    choice.text = text.value.trim();
    apply();
  });
  wrong?.addEventListener("change", () => {
    choice.wrong = wrong.checked;
    apply();
  });
  find("clear-filters").addEventListener("click", () => {
    Object.assign(choice, { klass: -1, wrong: false, text: "", group: null });
    apply();
  });

  return {
    refresh() {
      if (document.activeElement !== text) text.value = choice.text;
      if (wrong) wrong.checked = choice.wrong;
      klass.write(choice.klass);
      const clear = find("clear-filters");
      clear.hidden = !filtering(choice);
      clear.textContent = choice.group ? `Clear filters (${visible(choice.group.title)})` : "Clear filters";
    },
  };
}

function listedClasses(names) {
  const options = names.map((name, k) => make("option", { value: k }, name));
  const node = make("select", { "data-testid": "choose-class" }, make("option", { value: -1 }, "all"), ...options);
  return { node, read: () => Number(node.value), write: (k) => (node.value = String(k)) };
}

function searchableClasses(names) {
  const index = new Map(names.map((name, k) => [name, k]));
  const options = make("datalist", { id: "class-names" });
  const field = {
    list: "class-names",
    type: "search",
    autocomplete: "off",
    spellcheck: "false",
    "data-testid": "choose-class",
  };
  const box = make("input", { ...field, placeholder: `${whole(names.length)} classes: type a name` });
  const node = make("span", {}, box, options);
  // Thousands of options are made when somebody comes near, not while the page opens.
  const fill = () =>
    options.childElementCount || options.append(...names.map((name) => make("option", { value: name })));
  box.addEventListener("focus", fill, { once: true });
  return {
    node,
    read: () => index.get(box.value) ?? -1,
    write(k) {
      if (k >= 0) box.value = names[k];
      else if (document.activeElement !== box) box.value = "";
    },
  };
}

function makeCard(report, i, open) {
  const { samples, payload } = report;
  const { label, pred, suggested } = samples;
  const told = describe(report, i);
  const kind = KINDS[samples.kind[i]];
  const lines = [];
  if (label[i] >= 0) lines.push(line("labelled", report.className(label[i])));
  lines.push(line("predicted", report.className(pred[i]), kind));
  if (suggested[i] >= 0 && suggested[i] !== label[i]) lines.push(line("perhaps", report.className(suggested[i])));
  const figures = [samples.hardness, samples.confidence, "hsf"]
    .filter((key, at, keys) => samples.columns.has(key) && keys.indexOf(key) === at)
    .map((key) => make("span", {}, `${shortTitle(payload, key)} ${number(samples.columns.get(key)[i])}`));
  const look = {
    pointerenter: () => report.point(i),
    pointerleave: () => report.point(-1),
    focus: () => report.point(i),
    blur: () => report.point(-1),
  };
  return make(
    "button",
    {
      type: "button",
      class: `card ${kind}`,
      "aria-label": told,
      "data-testid": "card",
      "data-row": i,
      click: open,
      ...look,
    },
    picture(report, i, "frame"),
    make("span", { class: "facts" }, ...lines),
    make("span", { class: "figures" }, ...figures),
  );
}

const line = (word, name, kind) =>
  make(
    "span",
    { class: "line" },
    make("span", { class: "word" }, word),
    kind && kind !== "plain" ? glyph(kind) : null,
    named(name),
  );

function picture(report, i, kind) {
  const at = report.samples.picture[i];
  if (at < 0) return make("span", { class: `${kind} bare` }, named(report.samples.id[i]));
  const source = String(report.payload.pictures[at]);
  return make("span", { class: kind }, make("img", { src: source, alt: "", decoding: "async", draggable: "false" }));
}

function describe(report, i) {
  const { samples, payload } = report;
  const label = samples.label[i] >= 0 ? `labelled ${report.className(samples.label[i])}, ` : "";
  const scores = [...new Set([samples.hardness, samples.confidence])]
    .filter(Boolean)
    .map((key) => `, ${shortTitle(payload, key)} ${number(samples.columns.get(key)[i])}`);
  return `${label}predicted ${report.className(samples.pred[i])}${scores.join("")}, ${visible(samples.id[i])}`;
}

const scoreTitle = (payload, key) => visible(payload.scores[key]?.title ?? key);

function shortTitle(payload, key) {
  if (key === "hsf") return "people";
  return key.startsWith("confidence") ? "conf." : scoreTitle(payload, key);
}
