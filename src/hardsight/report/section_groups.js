// Hardness by group: a table per column with intervals.

sections.groups = (box, { columns }, report) => {
  for (const group of columns) {
    const values = report.groupValues.get(group.column);
    const choose = (row) => ({ title: `${group.column}: ${row.value}`, value: row.value, values });
    const { interval, ...chart } = intervalColumn(group.rows, group.overall, "all samples");
    const table = {
      key: "group",
      caption: `Hardness by ${visible(group.column)}`,
      sort: "mean",
      ascending: !report.samples.largerIsHarder,
      rows: group.rows,
      columns: [
        { key: "value", title: group.column, kind: "text" },
        { key: "n", title: "samples", kind: "int" },
        { key: "mean", title: `mean ${report.mainTitle}`, kind: "number" },
        { key: "low", title: "interval", kind: "number" },
        { key: "adjusted", title: "difference within classes", kind: "signed" },
        { key: "accuracy", title: "accuracy", kind: "percent" },
        { key: "flag", title: "in words", kind: "flag" },
      ],
    };
    const cells = {
      value: (row) => link(row.value, () => report.chooseGroup(choose(row))),
      low: (row) => range(row.low, row.high),
    };
    const node = payloadTable(table, cells, [{ after: "value", ...chart, cell: interval }]);
    box.append(make("h3", "By ", named(group.column)), group.note ? makeNote(group.note) : "", node);
  }
};
