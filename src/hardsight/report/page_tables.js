// Tables that sort, filter and draw a hundred rows at a time.

const ROWS = 100; // drawn at a time
const WRITERS = { int: whole, percent, number, signed };
const FLAGS = { harder: "▲ harder", easier: "▼ easier" };

const flagText = (flag) => make("span", { class: `flag ${flag || "none"}` }, FLAGS[flag] ?? "no clear difference");

function withInterval(write, value, low, high) {
  if (!isNumber(low) || !isNumber(high)) return write(value);
  return make("span", write(value), make("small", `${write(low)} to ${write(high)}`));
}

// A table of the payload, {key, caption, columns, rows, sort, ascending, search}: a row is a mapping, or a list in the
// order of the columns. cells: how the cells of some columns are drawn, by key.
function payloadTable(table, cells = {}, more = []) {
  const place = new Map(table.columns.map(({ key }, at) => [key, at]));
  const get = (row, key) => (Array.isArray(row) ? row[place.get(key)] : row[key]);
  // The ends of an interval stand beside their value.
  const isEnd = ({ key }) => /_(low|high)$/.test(key) && place.has(key.replace(/_(low|high)$/, ""));
  const shown = table.columns.filter((column) => !isEnd(column) && cells[column.key] !== null);
  shown.sort((a, b) => Number(b.key === table.search) - Number(a.key === table.search)); // names come first
  const columns = shown.map((column) => {
    const { key, kind } = column;
    const write = WRITERS[kind];
    const bounds = (row) => withInterval(write, get(row, key), get(row, `${key}_low`), get(row, `${key}_high`));
    const cell = cells[key] ?? (kind === "flag" ? (row) => flagText(get(row, key)) : write && bounds);
    return { ...column, kind: kind === "flag" ? "text" : kind, of: (row) => get(row, key), cell };
  });
  for (const { after, ...column } of more) columns.splice(columns.findIndex(({ key }) => key === after) + 1, 0, column);
  return makeTable({
    ...table,
    columns,
    first: columns.find(({ key }) => key === table.sort),
    down: !table.ascending,
    textOf: table.search && ((row) => visible(get(row, table.search) ?? "")),
  });
}

// columns: {key, title, kind, of(row), cell?(row), head?}; a column without `of` cannot be sorted (a drawing).
function makeTable({ key, columns, rows, caption, first, down = true, textOf, step = ROWS }) {
  const collator = new Intl.Collator("en", { numeric: true });
  let sorted = { column: first, down };
  let limit = step;
  let text = "";
  const body = make("tbody");
  const more = makeButton("", () => fill(limit + step), { "data-testid": `${key}-more` });
  const status = make("p.status", { role: "status", "data-testid": `${key}-status` });
  const heads = columns.map((column) => {
    if (!column.of) return make("th", { scope: "col" }, column.title && named(column.title), column.head);
    const title = [named(column.title), make("span.arrow", { "aria-hidden": "true" })];
    const style = column.kind === "text" ? null : "number";
    const sort = makeButton("", () => sortBy(column), { class: "sort" });
    sort.append(...title);
    return make("th", { scope: "col", class: style, "data-testid": `${key}-head-${column.key}` }, sort, column.head);
  });

  function sortBy(column) {
    // Numbers start with the largest, texts with the first.
    sorted = { column, down: sorted.column === column ? !sorted.down : column.kind !== "text" };
    fill(step);
  }

  function compare(a, b) {
    const { column, down } = sorted;
    const [x, y] = [column.of(a) ?? null, column.of(b) ?? null];
    if (x === null || y === null) return Number(x === null) - Number(y === null); // missing values stay at the end
    const order = column.kind === "text" ? collator.compare(x, y) : x - y;
    return down ? -order : order;
  }

  function fill(count) {
    limit = count;
    const matching = text ? rows.filter((row) => textOf(row).toLowerCase().includes(text)) : rows.slice();
    if (sorted.column) matching.sort(compare);
    const shown = matching.slice(0, limit);
    body.replaceChildren(...shown.map((row) => make("tr", columns.map((column) => cell(column, row)))));
    const order = (column) => (sorted.column !== column ? "none" : sorted.down ? "descending" : "ascending");
    columns.forEach((column, k) => column.of && heads[k].setAttribute("aria-sort", order(column)));
    const left = matching.length - shown.length;
    more.hidden = left === 0;
    more.textContent = moreOf(step, left);
    const all = matching.length < rows.length ? `, ${whole(rows.length)} in all` : "";
    status.textContent = left || all ? `${whole(shown.length)} of ${counted(matching.length, "row")} shown${all}.` : "";
  }

  function cell({ kind, of, cell: drawn }, row) {
    const content = drawn ? drawn(row) : kind === "text" ? named(of(row) ?? "–") : WRITERS[kind ?? "number"](of(row));
    return make("td", { class: kind === "text" || !of ? null : "number" }, content);
  }

  function search(event) {
    text = event.target.value.trim().toLowerCase();
    fill(step);
  }

  fill(step);
  const table = make("table", make("caption", caption), make("thead", make("tr", heads)), body);
  const field = { type: "search", autocomplete: "off", spellcheck: "false", "data-testid": `${key}-filter` };
  const box = make("div.wide", { tabindex: "0", role: "region", "aria-label": caption }, table);
  const filter = textOf && make("label.search", "Name contains ", make("input", { ...field, input: search }));
  return make("div.table", { "data-testid": `${key}-table` }, filter, box, status, more);
}

// The numbers behind charts: built when somebody opens them, and again when the charts change.
function foldedTable(key, describe) {
  const box = make("div");
  const refresh = () => node.open && box.replaceChildren(makeTable({ key, ...describe() }));
  const node = make("details.rest", { toggle: refresh }, make("summary", "Numbers as a table"), box);
  return { node, refresh };
}
