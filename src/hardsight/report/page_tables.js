// Tables: the template writes every row; the script sorts and filters them and shows a hundred at a time.

const ROWS = 100; // shown at a time
const decimal = (value) => (isNumber(value) ? (Math.abs(value) < 0.0005 ? 0 : value).toFixed(3).replace("-", "−") : "–");
const WRITERS = { int: whole, percent, number, signed, decimal };

// box: the table as the template or `makeTable` wrote it; table: {key, columns, rows, sort, ascending, search, chart}, a
// cell is a value or [value, low, high]; cells: makers of a column's cells, by its key: (row, k) => node.
function enhance(box, table, cells = {}) {
  const { key, columns, rows, chart } = table;
  const collator = new Intl.Collator("en", { numeric: true });
  const place = (name) => columns.findIndex((column) => column.key === name);
  const value = (row, at) => (Array.isArray(row[at]) ? row[at][0] : row[at]) ?? null;
  const [body, heads] = [box.querySelector("tbody"), box.querySelectorAll("thead th")];
  const entries = [...body.rows].map((node, k) => ({ node, row: rows[k], k, dressed: false }));
  let sorted = { at: place(table.sort), down: !table.ascending };
  let limit = ROWS;
  let text = "";
  if (chart) cells = { ...cells, chart: chartCells() };

  function chartCells() {
    const [at, flag] = [place(chart.key), place("flag")];
    const spans = rows.map((row) => ({ mean: row[at][0], low: row[at][1], high: row[at][2], flag: row[flag] }));
    const { interval, title, head } = intervalColumn(spans, chart.overall, chart.what);
    heads[place("chart")].append(named(title), head);
    return (_, k) => interval(spans[k]);
  }

  function sortBy(at) {
    // Numbers start with the largest, texts with the first.
    sorted = { at, down: sorted.at === at ? !sorted.down : columns[at].kind !== "text" };
    fill(ROWS);
  }

  function compare({ row: a }, { row: b }) {
    const [x, y] = [value(a, sorted.at), value(b, sorted.at)];
    if (x === null || y === null) return Number(x === null) - Number(y === null); // missing values stay at the end
    const order = typeof x === "string" ? collator.compare(x, y) : x - y;
    return sorted.down ? -order : order;
  }

  function dress(entry) {
    for (const [name, maker] of Object.entries(cells))
      if (!entry.dressed && place(name) >= 0) entry.node.cells[place(name)].replaceChildren(maker(entry.row, entry.k));
    entry.dressed = true;
    return entry.node;
  }

  function fill(count) {
    limit = count;
    const name = ({ row }) => visible(value(row, place(table.search)) ?? "").toLowerCase();
    const matching = text ? entries.filter((entry) => name(entry).includes(text)) : entries.slice();
    if (sorted.at >= 0) matching.sort(compare);
    body.replaceChildren(...matching.slice(0, limit).map(dress));
    const order = (at) => (sorted.at !== at ? "none" : sorted.down ? "descending" : "ascending");
    if (table.sort) heads.forEach((head, at) => columns[at].kind !== "chart" && head.setAttribute("aria-sort", order(at)));
    const left = Math.max(matching.length - limit, 0);
    more.hidden = left === 0;
    more.textContent = moreOf(ROWS, left);
    const all = matching.length < rows.length ? `, ${whole(rows.length)} in all` : "";
    const shown = `${whole(matching.length - left)} of ${counted(matching.length, "row")} shown`;
    status.textContent = left || all ? `${shown}${all}.` : "";
  }

  const more = makeButton("", () => fill(limit + ROWS), { "data-testid": `${key}-more` });
  const status = make("p.status", { role: "status", "data-testid": `${key}-status` });
  const search = (event) => {
    text = event.target.value.trim().toLowerCase();
    fill(ROWS);
  };
  const field = { type: "search", autocomplete: "off", spellcheck: "false", "data-testid": `${key}-filter` };
  if (table.search) box.prepend(make("label.search", "Name contains ", make("input", { ...field, input: search })));
  if (table.sort)
    heads.forEach((head, at) => {
      if (columns[at].kind === "chart") return;
      const button = makeButton("", () => sortBy(at), { class: "sort" });
      button.append(...head.childNodes, make("span.arrow", { "aria-hidden": "true" }));
      head.append(button);
    });
  box.append(status, more);
  fill(ROWS);
  return box;
}

// The same for numbers that only the script has.
function makeTable(table, cells) {
  const { key, caption, columns, rows } = table;
  const style = ({ kind }) => ({ class: kind === "text" ? null : "number" });
  const head = (column) => make("th", { scope: "col", ...style(column) }, named(column.title));
  const cell = (value, column) => make("td", style(column), WRITERS[column.kind]?.(value) ?? named(value ?? "–"));
  const lines = rows.map((row) => make("tr", row.map((value, at) => cell(value, columns[at]))));
  const node = make("table", make("caption", caption), make("thead", make("tr", columns.map(head))), make("tbody", lines));
  const box = make("div.wide", { tabindex: "0", role: "region", "aria-label": caption }, node);
  return enhance(make("div.table", { "data-testid": `${key}-table` }, box), table, cells);
}

// The numbers behind charts: built when somebody opens them, and again when the charts change.
function foldedTable(describe) {
  const box = make("div");
  const refresh = () => node.open && box.replaceChildren(makeTable(...describe()));
  const node = make("details.rest", { toggle: refresh }, make("summary", "Numbers as a table"), box);
  return { node, refresh };
}
