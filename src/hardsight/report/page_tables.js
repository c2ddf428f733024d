// Tables that sort, filter and draw a hundred rows at a time; the tables of classes, groups, clusters and comparison.

const ROWS = 100; // drawn at a time

const WRITERS = { int: whole, percent, number, signed };

// columns: {key, title, kind, of(row), cell?(row), head?}; a column without `of` cannot be sorted (a drawing).
function makeTable({ key, columns, rows, caption, first, down = true, textOf, step = ROWS }) {
  const collator = new Intl.Collator("en", { numeric: true });
  let sorted = { column: first ?? null, down };
  let limit = step;
  let text = "";
  const body = make("tbody");
  const more = make("button", {
    type: "button",
    "data-testid": `${key}-more`,
    click: () => {
      limit += step;
      fill();
    },
  });
  const status = make("p", { class: "status", role: "status", "data-testid": `${key}-status` });
  const heads = columns.map((column) => {
    const numeric = column.kind !== "text";
    if (!column.of) return make("th", { scope: "col" }, column.title ? named(column.title) : null, column.head);
    const button = make(
      "button",
      { type: "button", class: "sort", click: () => sortBy(column) },
      named(column.title),
      make("span", { class: "arrow", "aria-hidden": "true" }),
    );
    return make(
      "th",
      { scope: "col", class: numeric ? "number" : null, "data-testid": `${key}-head-${column.key}` },
      button,
      column.head,
    );
  });

  function sortBy(column) {
    // Numbers start with the largest, words with the first.
    sorted = { column, down: sorted.column === column ? !sorted.down : column.kind !== "text" };
    limit = step;
    fill();
  }

  function compare(a, b) {
    const { column, down } = sorted;
    const [x, y] = [column.of(a), column.of(b)];
    const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
    if (noX || noY) return Number(noX) - Number(noY); // what is missing stays at the end
    const order = column.kind === "text" ? collator.compare(x, y) : x - y;
    return down ? -order : order;
  }

  function fill() {
    const wanted = text && textOf ? rows.filter((row) => textOf(row).toLowerCase().includes(text)) : rows.slice();
    if (sorted.column) wanted.sort(compare);
    const shown = wanted.slice(0, limit);
    body.replaceChildren(...shown.map((row) => make("tr", {}, ...columns.map((column) => cell(column, row)))));
    columns.forEach((column, k) => {
      if (column.of)
        heads[k].setAttribute(
          "aria-sort",
          sorted.column !== column ? "none" : sorted.down ? "descending" : "ascending",
        );
    });
    more.hidden = shown.length === wanted.length;
    const left = wanted.length - shown.length;
    more.textContent = moreOf(step, left);
    const all = wanted.length < rows.length ? `, ${whole(rows.length)} in all` : "";
    status.textContent = left || all ? `${whole(shown.length)} of ${counted(wanted.length, "row")} shown${all}.` : "";
  }

  function cell(column, row) {
    const content = column.cell
      ? column.cell(row)
      : column.kind === "text"
        ? named(column.of(row) ?? "–")
        : WRITERS[column.kind ?? "number"](column.of(row));
    return make("td", { class: column.kind === "text" || !column.of ? null : "number" }, content);
  }

  const search = textOf
    ? make(
        "label",
        { class: "search" },
        "Name contains ",
        make("input", {
          type: "search",
          autocomplete: "off",
          spellcheck: "false",
          "data-testid": `${key}-filter`,
          input: (event) => {
            text = event.target.value.trim().toLowerCase();
            limit = step;
            fill();
          },
        }),
      )
    : null;
  fill();
  const table = make(
    "table",
    {},
    caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, ...heads)),
    body,
  );
  return make(
    "div",
    { class: "table" },
    search,
    make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption || "table" }, table),
    status,
    more,
  );
}

function drawClassTable(report) {
  const { class_table: table } = report.payload;
  const box = find("class-table");
  if (!box) return;
  if (!table.rows?.length) return box.append(make("p", { class: "note" }, "There is no class to list."));
  const rows = table.rows.map((values, k) => ({ values, k }));
  const nameAt = Math.max(
    0,
    table.columns.findIndex((column) => column.key === "name"),
  );
  const place = new Map(table.columns.map((column, at) => [column.key, at]));
  // Classes that are called by their numbers need no second column of them.
  const numbered = rows.every((row) => String(row.values[place.get("code")]) === row.values[nameAt]);
  // The ends of an interval stand beside their value, not in columns of their own.
  const isEnd = ({ key }) => /_(low|high)$/.test(key) && place.has(key.replace(/_(low|high)$/, ""));
  const columns = table.columns
    .filter((column) => !isEnd(column) && !(column.key === "code" && numbered))
    .sort((a, b) => Number(b.key === "name") - Number(a.key === "name")) // the name first; the others keep their order
    .map((column) => {
      const at = place.get(column.key);
      const [low, high] = [place.get(`${column.key}_low`), place.get(`${column.key}_high`)];
      const write = WRITERS[column.kind ?? "number"];
      let cell;
      if (at === nameAt) cell = (row) => classButton(report, row, place, nameAt);
      else if (low !== undefined && high !== undefined)
        cell = (row) => withInterval(write, row.values[at], row.values[low], row.values[high]);
      return { ...column, title: column.title ?? column.key, of: (row) => row.values[at], cell };
    });
  const edges = table.histogram_edges;
  if (table.histograms?.length && edges?.length > 1) {
    const [low, high] = [edges[0], edges[edges.length - 1]].map((edge) => Number(edge.toPrecision(3)));
    const title = `${report.mainTitle}, ${low} to ${high}`;
    columns.splice(columns.findIndex((column) => column.key === "n") + 1 || 1, 0, {
      key: "histogram",
      kind: "text",
      title,
      cell: (row) => miniHistogram(edges, table.histograms[row.k]),
    });
  }
  const first = columns.find((column) => column.key === report.samples.hardness);
  box.append(
    makeTable({
      key: "class",
      columns,
      rows,
      first,
      down: report.samples.largerIsHarder,
      caption: "Choose a class to see its samples.",
      textOf: (row) => visible(row.values[nameAt]),
    }),
  );
}

function withInterval(write, value, low, high) {
  if (!isNumber(low) || !isNumber(high)) return write(value);
  return make("span", {}, write(value), make("small", {}, `${write(low)} to ${write(high)}`));
}

function classButton(report, row, place, nameAt) {
  const k = place.has("code") ? row.values[place.get("code")] : classOfRow(report.payload.classes, row, nameAt);
  const name = named(row.values[nameAt]);
  if (k < 0) return name;
  return make("button", { type: "button", class: "link", click: () => report.chooseClass(k) }, name);
}

// Without a column of class numbers: a row per class, as a rule in the same order.
function classOfRow(classes, row, nameAt) {
  const name = row.values[nameAt];
  return classes[row.k] === name ? row.k : classes.indexOf(name);
}

const FLAGS = { harder: "▲ harder", easier: "▼ easier" };
const flagWord = ({ flag }) =>
  make(
    "span",
    { class: `flag ${Object.hasOwn(FLAGS, flag) ? flag : "none"}` },
    Object.hasOwn(FLAGS, flag) ? FLAGS[flag] : "no clear difference",
  );

function drawGroups(report) {
  const box = find("group-tables");
  if (!box) return;
  const main = report.mainTitle;
  const told = new Set(); // a note that several columns share is said once
  for (const group of report.payload.groups) {
    box.append(make("h3", {}, "By ", named(group.column)));
    if (group.note && !told.has(group.note)) box.append(make("p", { class: "note" }, named(group.note)));
    told.add(group.note);
    if (!group.rows?.length) {
      box.append(make("p", { class: "note" }, "No value of this column has enough samples to be measured."));
      continue;
    }
    const rule = intervalScale(group.rows, group.overall);
    const mean = { key: "mean", title: `mean ${main}`, kind: "number", of: (row) => row.mean };
    const columns = [
      {
        key: "value",
        title: visible(group.column),
        kind: "text",
        of: (row) => row.value,
        cell: (row) => groupButton(report, group, row),
      },
      {
        key: "chart",
        title: isNumber(group.overall) ? `dashed: all samples, ${number(group.overall)}` : "",
        head: intervalHead(rule),
        cell: (row) => intervalRow(rule, row, group.overall),
      },
      { key: "n", title: "samples", kind: "int", of: (row) => row.n },
      mean,
      { key: "low", title: "interval", kind: "number", of: (row) => row.low, cell: (row) => range(row.low, row.high) },
      {
        key: "adjusted",
        title: "difference within classes",
        kind: "signed",
        of: (row) => row.adjusted,
        cell: (row) => withInterval(signed, row.adjusted, row.adjusted_low, row.adjusted_high),
      },
      { key: "accuracy", title: "accuracy", kind: "percent", of: (row) => row.accuracy },
      { key: "flag", title: "in words", kind: "text", of: (row) => row.flag, cell: flagWord },
    ];
    const node = makeTable({
      key: "group",
      columns,
      rows: group.rows,
      first: mean,
      down: report.samples.largerIsHarder,
      step: 50,
      caption: `Hardness by ${visible(group.column)}`,
    });
    node.setAttribute("data-testid", "group-table");
    box.append(node);
  }
}

function groupButton(report, group, row) {
  const values = report.groupValues.get(group.column);
  if (!values || row.value === null) return named(row.value ?? "–");
  const chosen = { title: `${group.column}: ${row.value}`, value: row.value, values };
  return make("button", { type: "button", class: "link", click: () => report.chooseGroup(chosen) }, named(row.value));
}

// The text of each sample's value: points hold an index into the values, or the text itself.
function readGroupValues(payload) {
  const found = new Map();
  for (const [column, held] of Object.entries(payload.points.groups ?? {})) {
    const rows = payload.groups.find((group) => group.column === column)?.rows ?? [];
    const cells = Array.isArray(held) ? held : held.codes;
    const texts = Array.isArray(held) ? rows.map((row) => row.value) : held.values;
    found.set(
      column,
      cells.map((cell) => (typeof cell === "number" ? (texts[cell] ?? null) : cell)),
    );
  }
  return found;
}

function drawClusters(report) {
  const box = find("clusters");
  if (!box) return;
  const main = report.mainTitle;
  for (const cluster of report.payload.clusters.rows) {
    const rows = cluster.rows ?? [];
    const confused = cluster.confused ? [", often taken for ", named(cluster.confused)] : [];
    const difference = isNumber(cluster.difference)
      ? `, ${signed(cluster.difference)} against the rest of its class`
      : "";
    const small = (i) =>
      make(
        "button",
        { type: "button", class: "thumb", "aria-label": describe(report, i), click: () => report.open(i, rows) },
        picture(report, i, "small"),
      );
    box.append(
      make(
        "article",
        {},
        make("h4", {}, `${counted(cluster.n, "sample")} of `, named(cluster.class), ...confused),
        make(
          "p",
          { class: "note" },
          `mean ${main} ${number(cluster.mean)} (${range(cluster.low, cluster.high)})${difference}`,
        ),
        make("div", { class: "thumbs" }, ...rows.slice(0, 12).map(small)),
      ),
    );
  }
}

function drawComparison(report) {
  const box = find("comparison-table");
  if (!box) return;
  const rows = report.payload.comparison.class_rows ?? [];
  if (rows.length === 0) return box.append(make("p", { class: "note" }, "There is no class to compare."));
  const known = [
    { key: "class", title: "class", kind: "text" },
    { key: "n", title: "samples", kind: "int" },
    { key: "before", title: "mean before", kind: "number" },
    { key: "after", title: "mean now", kind: "number" },
    {
      key: "change",
      title: "change",
      kind: "signed",
      cell: (row) => withInterval(signed, row.change, row.low, row.high),
    },
    { key: "p", title: "p (corrected)", kind: "number" },
    { key: "accuracy_before", title: "accuracy before", kind: "percent" },
    { key: "accuracy", title: "accuracy now", kind: "percent" },
    { key: "flag", title: "in words", kind: "text", cell: flagWord },
  ];
  const columns = known
    .filter(({ key }) => Object.hasOwn(rows[0], key))
    .map((column) => ({ ...column, of: (row) => row[column.key] }));
  const first = columns.find(({ key }) => key === "change");
  box.append(
    makeTable({
      key: "comparison",
      columns,
      rows,
      first,
      caption: "Classes whose mean changed",
      textOf: (row) => visible(row.class ?? ""),
    }),
  );
}
