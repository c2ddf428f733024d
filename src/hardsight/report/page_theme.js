// Light or dark: as the system prefers, until the button is used.

// redraw(): the canvas, which CSS cannot color; drawRest(): everything that is not drawn yet, before printing.
function makeThemeButton(redraw = () => {}, drawRest = () => {}) {
  const button = find("theme");
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
    redraw();
  };
  // Storage may be unavailable to files and private windows; the theme then lasts as long as the page.
  try {
    const stored = localStorage.getItem("hardsight-theme");
    if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  } catch {}
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("hardsight-theme", root.dataset.theme);
    } catch {}
    show();
  });
  dark.addEventListener("change", show);
  // Paper is white: the canvas has to be drawn for it.
  let before;
  addEventListener("beforeprint", () => {
    drawRest();
    before = root.dataset.theme;
    root.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    redraw();
  });
  show();
}
