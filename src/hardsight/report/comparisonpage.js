// Charts of evaluated runs: small multiples with one legend, by a selector where there would be too many.

const { charts } = JSON.parse(find("payload").textContent);

makeThemeButton(
  () => {}, // all is SVG, which follows the style
  () => {},
);
// chart: {title, x, y, kind, least, most, diagonal, sets}; a set, one of the selector: {name, panels}; a panel:
// {name, x, lines}; a line: {k, name, y, low, high, n, runs}, where k is its colour on the whole page.
function drawChart(chart, box) {
  const hidden = new Set();
  const grid = make("div", { class: "charts" });
  const legend = make("div", { class: "keys", role: "group", "aria-label": "Lines" });
  const select = make("select", { change: show, "data-testid": `set-${chart.key}` });
  select.append(...chart.sets.map((set, k) => make("option", { value: k }, visible(set.name))));
  const choose = chart.sets.length > 1 ? make("p", { class: "filters" }, make("label", {}, "Show ", select)) : null;
  box.append(...[choose, legend, grid].filter(Boolean));
  show();

  function show() {
    const { panels } = chart.sets[Number(select.value) || 0];
    const lines = new Map(panels.flatMap((panel) => panel.lines.map((line) => [line.k, styled(line)])));
    const keys = [...lines.values()].sort((a, b) => a.k - b.k);
    const key = (line) => lineKey(line, grid, !hidden.has(line.k), () => toggle(line.k));
    legend.replaceChildren(...(keys.length > 1 ? keys.map(key) : []));
    const drawn = panels.map((panel) => panelChart(chart, panel, panel.lines.filter((line) => !hidden.has(line.k))));
    grid.classList.toggle("few", panels.length < 3);
    grid.replaceChildren(...drawn.map((one) => one.figure));
    for (const one of drawn) one.start();
  }

  function toggle(k) {
    if (!hidden.delete(k)) hidden.add(k);
    const at = [...legend.children].indexOf(document.activeElement);
    show();
    legend.children[at]?.focus();
  }
}

const styled = (line) => ({ ...line, style: `line-${line.k % 12}` });

function panelChart(chart, panel, lines) {
  const write = chart.kind === "percent" ? percent : number;
  return linesChart({
    key: chart.key,
    title: panel.name,
    epochs: panel.x,
    unit: chart.x,
    side: chart.y,
    kind: chart.kind,
    least: chart.least,
    most: chart.most,
    diagonal: chart.diagonal,
    whole: chart.least === 0 && chart.most === 1, // so that panels can be compared
    join: chart.join,
    write,
    height: 250,
    lines: lines.map((line) => ({
      ...styled(line),
      values: line.y,
      low: line.low ?? undefined,
      high: line.high ?? undefined,
      tell(k) {
        const ends = line.low && isNumber(line.low[k]) ? ` (${write(line.low[k])} to ${write(line.high[k])})` : "";
        const count = isNumber(line.n?.[k]) ? `, n = ${whole(line.n[k])}` : "";
        return `${write(line.y[k])}${ends}${count}`;
      },
    })),
  });
}

charts.forEach((chart, at) => drawChart(chart, document.querySelector(`[data-chart="${at}"]`)));
document.documentElement.dataset.drawn = "all";
