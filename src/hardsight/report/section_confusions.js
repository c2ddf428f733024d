// Confusions: a number of the matrix, or of the table of pairs, selects its samples.

sections.confusions = (box, { codes, pairs }, report) => (table) => {
  const pairButton = (label, pred, n, share) => {
    const [a, b] = [report.className(label), report.className(pred)];
    const title = `labeled ${a}, predicted ${b}: ${counted(n, "sample")}, ${percent(share)} of ${a}`;
    return makeButton(whole(n), () => report.choosePair({ label, pred }), { title, "aria-label": title, class: "pair" });
  };
  if (pairs) return { n: ([, , n, share], k) => pairButton(...pairs[k], n, share) };
  const shaded = (at) => ([, ...row], k) => {
    if (row[at] === 0) return document.createTextNode("·");
    const share = row[at] / sum(row);
    const button = pairButton(codes[k], codes[at], row[at], share);
    button.classList.add(at === k ? "same" : "other");
    button.style.setProperty("--share", Math.sqrt(share).toFixed(3)); // the root, so that rare confusions are visible
    return button;
  };
  return Object.fromEntries(table.columns.slice(1).map(({ key }, at) => [key, shaded(at)]));
};
