// Suspect labels: a look at them, and the command that writes the lists.

sections.label_errors = (box, { command }, report) => {
  const code = box.parentElement.querySelector(".command code");
  code.closest(".command").append(copyButton("Copy", command, code), lookAt(report, "suspects") || "");
};

// A button that opens a list of the gallery, if the page has it.
function lookAt(report, list) {
  const attributes = { class: "quiet", "data-testid": `see-${list}` };
  return report.hasList(list) && makeButton("Look at them", () => report.showList(list), attributes);
}
