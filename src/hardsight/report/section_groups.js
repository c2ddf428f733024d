// Hardness by group: the values of a group choose its samples.

sections.groups = (box, data, report) => (table) => {
  const values = report.groupValues.get(table.group);
  const choose = (value) => report.chooseGroup({ title: `${table.group}: ${value}`, column: table.group, value, values });
  return { value: ([value]) => link(value, () => choose(value)) };
};
