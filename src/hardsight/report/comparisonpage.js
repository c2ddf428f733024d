// Charts of evaluated runs: small multiples with one legend, and a selector where there would be too many.

const { charts } = JSON.parse(find("payload").textContent);

makeThemeButton(); // everything is SVG, which follows the style

// chart: {title, x, y, kind, least, most, diagonal, sets}; a set, one of the selector: {name, panels}; a panel:
// {name, x, lines}; a line: {k, name, y, low, high, n}, where k is its color on the whole page.
function drawChart(chart, box) {
  const hidden = new Set();
  const grid = make("div.charts");
  const legend = make("div.keys", { role: "group", "aria-label": "Lines" });
  let { panels } = chart.sets[0];
  const choose = (k) => {
    ({ panels } = chart.sets[k]);
    show();
  };
  const select = makeSelect(chart.sets.map(({ name }) => name), choose, `set-${chart.key}`);
  if (chart.sets.length > 1) box.append(make("p.filters", make("label", "Show ", select)));
  box.append(legend, grid);
  show();

  function show() {
    const lines = new Map(panels.flatMap((panel) => panel.lines.map((line) => [line.k, styled(line)])));
    lineKeys(legend, [...lines.values()].sort((a, b) => a.k - b.k), grid, hidden, show);
    grid.classList.toggle("few", panels.length < 3);
    place(grid, panels.map((panel) => panelChart(chart, panel, panel.lines.filter((line) => !hidden.has(line.k)))));
  }
}

const styled = (line) => ({ ...line, style: `line-${line.k % 12}` });

function panelChart({ sets, ...chart }, panel, lines) {
  const write = chart.kind === "percent" ? percent : number;
  const tell = ({ y, low, high, n }) => (k) => {
    const ends = isNumber(low?.[k]) ? ` (${write(low[k])} to ${write(high[k])})` : "";
    return `${write(y[k])}${ends}${isNumber(n?.[k]) ? `, n = ${whole(n[k])}` : ""}`;
  };
  const unit = chart.diagonal || (chart.least === 0 && chart.most === 1); // so that panels can be compared
  const shown = lines.map((line) => ({ ...styled(line), values: line.y, tell: tell(line) }));
  return linesChart({ ...chart, title: panel.name, epochs: panel.x, unit, write, height: 250, lines: shown });
}

document.querySelectorAll(".drawn").forEach((box, at) => drawChart(charts[at], box));
document.documentElement.dataset.drawn = "all";
