// People beside the model: the leaderboard of the scores, and people's answers against a score as a 2-D histogram.

sections.people = (box, people, report) => {
  const heat = make("div", { "data-testid": "people-histogram" });
  const figures = people.histograms.map(heatFigure);
  const show = (k) => place(heat, [figures[k]]);
  const titles = people.histograms.map(({ title }) => title);
  const score = make("p", make("label", "Score ", makeSelect(titles, show, "people-score")));
  box.append(
    make(
      "div.linked",
      make("div", make("h3", "People against a score"), score, heat),
      make("div", make("h3", "Easy and hard, for people and the model"), quarters(people.quarters, report)),
    ),
    make("h3", "Which score agrees best"),
    makeNote(people.board.note),
    board(people.board),
    ...people.tests.map((text) => make("p", named(text))),
  );
  if (people.hypotheses.length) {
    const entry = ({ name, verdict, words: text }) =>
      make("div", make("dt", named(`${name}: ${verdict}`)), make("dd", named(text)));
    const list = make("dl.made", { "data-testid": "hypotheses" }, people.hypotheses.map(entry));
    box.append(make("h3", "The AVH paper's hypotheses, here"), list);
  }
  if (figures.length) show(0);
};

function quarters(found, report) {
  if (!found) return makeNote("People found all samples equally hard, or there is no score to set against them.");
  const cell = (a, b, list) =>
    make(list ? "td.odd" : "td", make("strong", whole(found.counts[a][b])), list && [" ", lookAt(report, list)]);
  const head = (text, scope) => make("th", { scope }, text);
  const table = make(
    "table.quarters",
    { "data-testid": "quarters" },
    make("thead", make("tr", make("td"), head("model: easy", "col"), head("model: hard", "col"))),
    make(
      "tbody",
      make("tr", head("people: easy", "row"), cell(0, 0), cell(0, 1, "people_easy")),
      make("tr", head("people: hard", "row"), cell(1, 0, "people_hard"), cell(1, 1)),
    ),
  );
  return [table, makeNote(found.note)];
}

// A row per score: how well it agrees with people by each coefficient, and how far it is behind the best.
function board({ rows, coefficient, ceiling }) {
  if (rows.length === 0) return makeNote("No score could be compared with people.");
  const span = (row) => ({ mean: row[coefficient], low: row[`${coefficient}_low`], high: row[`${coefficient}_high`] });
  const { interval, ...chart } = intervalColumn(rows.map(span), ceiling, "ceiling");
  const given = ["spearman", "pearson", "kendall"].filter((key) => Object.hasOwn(rows[0], key));
  const columns = [
    { key: "title", title: "score", kind: "text" },
    { key: "kind", title: "kind", kind: "text" },
    ...given.map((key) => ({ key, title: key[0].toUpperCase() + key.slice(1), kind: "number" })),
    { key: "behind", title: "behind the best", kind: "number" },
    { key: "p_holm", title: "p (corrected)", kind: "number" },
  ];
  const bounds = (key) => (row) => withInterval(decimals, row[key], row[`${key}_low`], row[`${key}_high`]);
  const cells = Object.fromEntries([...given, "behind"].map((key) => [key, bounds(key)]));
  const caption = "Agreement with people: larger is better, 1 is the maximum.";
  const table = { key: "board", columns, rows, caption, sort: coefficient, step: 30 };
  return payloadTable(table, cells, [{ after: "kind", ...chart, cell: (row) => interval(span(row)) }]);
}

// Counts in a grid, darker where there are more; the line is the median of the score.
function heatFigure({ title, note, x, y, nx, ny, counts, medians }) {
  const canvas = make("div.canvas");
  const text = "Stronger: more samples (logarithmic). Line: median of the score.";
  const figure = make("figure", canvas, make("p.note", named(note), make("br"), text));
  const most = Math.max(...counts, 1);
  const edge = (axis, k, n) => axis.low + (k / n) * (axis.high - axis.low);
  const paint = (width) => {
    const { px, py, nodes } = axes({ width, height: 320 }, x, y);
    const cells = counts.flatMap((count, at) => {
      if (count === 0) return [];
      const [k, l] = [at % nx, Math.floor(at / nx)];
      const [x0, x1, y0, y1] = [edge(x, k, nx), edge(x, k + 1, nx), edge(y, l, ny), edge(y, l + 1, ny)];
      const shade = (0.12 + (0.88 * Math.log1p(count)) / Math.log1p(most)).toFixed(3);
      const box = { x: px(x0), y: py(y1), width: px(x1) - px(x0), height: py(y0) - py(y1), "fill-opacity": shade };
      const name = `${counted(count, "sample")}: people ${range(x0, x1)}, ${visible(title)} ${range(y0, y1)}`;
      return draw("rect.heat", box, draw("title", name));
    });
    const d = linePath(medians.map((_, k) => edge(x, k + 0.5, nx)), medians, px, py, true);
    const label = `2-D histogram of ${visible(title)} against human selection frequency. ${visible(note)}`;
    return picture(width, 320, label, ...nodes, ...cells, draw("path.median", { d }));
  };
  return { figure, start: () => drawnToWidth(canvas, paint) };
}
