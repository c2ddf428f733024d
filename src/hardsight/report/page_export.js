// Exports: CSV that spreadsheets do not evaluate and programs read exactly, and ids.

const RISKY = /^[=+\-@'\t\r\n＝＋－＠]/; // a spreadsheet would evaluate it: prefixed with ', as is ' itself

// One line of a CSV; numbers unquoted, texts in quotes.
function csvLine(values) {
  const text = (value) => `"${RISKY.test(value) ? "'" : ""}${value.replaceAll('"', '""')}"`;
  return values.map((value) => (typeof value === "string" ? text(value) : (value ?? ""))).join(",");
}

// The rows of a CSV as maps by its header, without the guards.
function readCsv(text) {
  const [lines, fields] = [[], /("(?:[^"]|"")*"|[^,\r\n]*)(,|\r\n|\n|\r|$)/g];
  let line = [];
  for (const [, field, end] of text.replace(/^\ufeff/, "").matchAll(fields)) {
    const value = field.startsWith('"') ? field.slice(1, -1).replaceAll('""', '"') : field;
    line.push(value.startsWith("'") && RISKY.test(value.slice(1)) ? value.slice(1) : value);
    if (end === ",") continue;
    if (line.length > 1 || line[0]) lines.push(line);
    line = [];
  }
  const [head = [], ...rows] = lines;
  return rows.map((row) => new Map(head.map((name, k) => [name, row[k] ?? ""])));
}

function download(name, lines) {
  const url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// The filtered list, or the selection in it, for other programs. rows(), name(): of the list.
function makeExports(report, rows, name) {
  const { samples, payload } = report;
  const id = (i) => samples.exact[i] ?? samples.id[i];
  const odd = (text) => text.trim() !== text || text === "" || /^"|[\n-\r\x1c-\x1e\x85\u2028\u2029]/.test(text);
  const line = (text) => (odd(text) ? JSON.stringify(text) : text); // as `hardsight clean` writes its lists
  const ids = () => rows().map((i) => line(id(i))).join("\n");
  const className = (k) => (k >= 0 ? payload.classes[k] : "");

  function write() {
    const entry = (i) => [id(i), className(samples.label[i]), className(samples.pred[i])];
    const scores = (i) => Array.from(samples.columns.values(), (values) => (isNumber(values[i]) ? values[i] : null));
    const head = csvLine(["id", "label", "pred", ...samples.columns.keys()]);
    download(`${name()}.csv`, [head, ...rows().map((i) => csvLine([...entry(i), ...scores(i)]))]);
  }

  const what = make("span");
  const save = makeButton("Download CSV", write, { class: "quiet", "data-testid": "download-list" });
  find("export").append(what, copyButton("Copy ids", ids), save);
  return {
    refresh(n, selected) {
      find("export").hidden = n === 0;
      what.textContent = `${counted(n, "sample")}${selected ? " selected" : ""}: `;
    },
  };
}
