// Suspect labels: how many, and the command that writes the lists.

sections.label_errors = (box, { count, by, next }, report) => {
  const command = make("code", { "data-testid": "next-command" }, visible(next));
  box.append(
    make("p.figure", make("strong", whole(count)), ` label${count === 1 ? "" : "s"}, ranked by `, named(by), ". ", lookAt(report, "suspects")),
    make("p", "Next, write lists of what to keep, relabel and drop:"),
    make("div.command", make("pre", command), copyButton("Copy", next, command)),
  );
};

const lookAt = (report, list) =>
  report.hasList(list) && makeButton("Look at them", () => report.showList(list), { class: "quiet", "data-testid": `see-${list}` });
