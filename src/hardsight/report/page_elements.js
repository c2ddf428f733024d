// Makers of nodes and of text. Text enters the page as text nodes only; nothing in these scripts parses HTML.

const SVG = "http://www.w3.org/2000/svg";

const find = (id) => document.getElementById(id);

// make("p.note", {attribute, event: function}, ...children): an element with its class; draw: the same in SVG.
const make = (name, ...rest) => furnish((tag) => document.createElement(tag), name, rest);
const draw = (name, ...rest) => furnish((tag) => document.createElementNS(SVG, tag), name, rest);

function furnish(create, name, [first, ...rest]) {
  const [tag, style] = name.split(".");
  const node = create(tag);
  const given = first && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first);
  for (const [key, value] of Object.entries({ class: style, ...(given ? first : {}) })) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  const children = (given ? rest : [first, ...rest]).flat();
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const makeButton = (text, click, attributes) => make("button", { type: "button", click, ...attributes }, text);
const makeNote = (text) => make("p.note", named(text));

// A select whose options are texts; change(k) is called with the index of the selected one.
function makeSelect(texts, change, testid) {
  const options = texts.map((text, k) => make("option", { value: k }, visible(text)));
  return make("select", { "data-testid": testid, change: (event) => change(Number(event.target.value)) }, options);
}

// Control characters and direction overrides could hide or reorder the text around them; they are shown as escapes.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

function visible(text) {
  return String(text).replace(HIDDEN, (character) => {
    const code = character.codePointAt(0).toString(16);
    return code.length < 3 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

// A name has its own element, so that its writing direction does not affect other text.
const named = (text, attributes) => make("bdi", { ...attributes }, visible(text));

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const whole = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "–");
const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(1)}%` : "–");

function number(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.0005 || size >= 1e7) return value.toExponential(1).replace("e+", "e").replaceAll("-", "−");
  if (size >= 1000) return whole(value).replace("-", "−");
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3).replace("-", "−");
}

const signed = (value) => (isNumber(value) && value > 0 ? `+${number(value)}` : number(value));
const range = (low, high) => (isNumber(low) && isNumber(high) ? `${number(low)} to ${number(high)}` : "–");
const counted = (n, one, many) => `${whole(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;
const moreOf = (step, left) => `Show ${whole(Math.min(step, left))} more${left > step ? ` of ${whole(left)}` : ""}`;
const sum = (values) => values.reduce((a, b) => a + b, 0);
const within = (value, low, high) => Math.max(low, Math.min(high, value));

// The color behind a CSS variable in the current theme, as the canvas needs it.
function color(name) {
  const probe = find("plot") ?? document.body;
  const before = probe.style.color;
  probe.style.color = `var(--${name})`;
  const value = getComputedStyle(probe).color;
  probe.style.color = before;
  return value;
}

// Five steps of a value from 0 to 1, each with its color.
const SHADES = ["step-4", "step-3", "step-2", "step-1", "step-0"];

function glyph(kind) {
  const shape = kind === "wrong" ? draw("path", { d: "M3 3 9 9M9 3 3 9" }) : draw("circle", { cx: 6, cy: 6, r: 3.4 });
  return draw("svg", { class: `glyph ${kind}`, viewBox: "0 0 12 12", "aria-hidden": "true" }, shape);
}

const link = (text, click) => make("button.link", { type: "button", click }, named(text));

// text: a string, or a function that returns it; node: what to select if the browser does not allow copying.
function copyButton(what, text, node) {
  const button = makeButton(what, copy, { class: "quiet", "data-testid": "copy" });
  async function copy() {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      button.textContent = "Copied";
    } catch {
      if (node) getSelection().selectAllChildren(node);
      button.textContent = node ? "Not allowed here: it is selected, press Ctrl+C" : "Not allowed here: download them";
    }
    setTimeout(() => (button.textContent = what), 3000);
  }
  return button;
}

// What draws each section of the page, by its key: (box, data, report); it may return makers of the cells of a
// table: (table) => makers by column. Scripts of sections register here.
const sections = {};
