// Suspect labels: how many, and the command that writes the lists.

sections.label_errors = (box, { count, by, next }, report) => {
  const command = make("code", { "data-testid": "next-command" }, visible(next));
  const text = ` label${count === 1 ? "" : "s"}, ranked by `;
  box.append(
    make("p.figure", make("strong", whole(count)), text, named(by), ". ", lookAt(report, "suspects")),
    make("p", "Next, write lists of what to keep, relabel and drop:"),
    make("div.command", make("pre", command), copyButton("Copy", next, command)),
  );
};

// A button that opens a list of the gallery, where the page has it.
function lookAt(report, list) {
  const attributes = { class: "quiet", "data-testid": `see-${list}` };
  return report.hasList(list) && makeButton("Look at them", () => report.showList(list), attributes);
}
