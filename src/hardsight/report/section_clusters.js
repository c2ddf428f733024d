// Hidden clusters: what they consist of, and their most typical samples.

sections.clusters = (box, { rows: clusters }, report) => {
  const articles = clusters.map(({ n, rows, mean: [mean, low, high], difference: [difference], class: name, confused }) =>
    make(
      "article",
      make("h4", `${counted(n, "sample")} of `, named(name), confused && [", often taken for ", named(confused)]),
      makeNote(
        `mean ${report.mainTitle} ${number(mean)} (${range(low, high)}), ` +
          `${signed(difference)} against the rest of its class`,
      ),
      make("div.thumbs", rows.map((i) => thumb(report, i, rows))),
    ),
  );
  box.append(make("div.clusters", { "data-testid": "cluster-list" }, articles));
};
