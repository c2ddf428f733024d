"use strict";
// Makers of nodes and of words. Text enters the page as text nodes only; nothing in these scripts parses HTML.

const SVG = "http://www.w3.org/2000/svg";

const find = (id) => document.getElementById(id);
const make = (name, attributes, ...children) => furnish(document.createElement(name), attributes, children);
const draw = (name, attributes, ...children) => furnish(document.createElementNS(SVG, name), attributes, children);

function furnish(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Control characters and direction overrides could hide or reorder the text around them; they are shown as escapes.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

function visible(text) {
  return String(text).replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

// A name stands in an element of its own, so that its writing direction stays inside.
const named = (text, attributes) => make("bdi", attributes, visible(text));

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const whole = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "–");
const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(1)} %` : "–");

function number(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.0005 || size >= 1e7)
    return value.toExponential(1).replace("e+", "e").replace("-", "−").replace("e-", "e−");
  if (size >= 1000) return whole(value).replace("-", "−");
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3).replace("-", "−");
}

const signed = (value) => (isNumber(value) && value > 0 ? `+${number(value)}` : number(value));
const range = (low, high) => (isNumber(low) && isNumber(high) ? `${number(low)} to ${number(high)}` : "–");
const counted = (n, one, many) => `${whole(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;

const moreOf = (step, left) =>
  left > step ? `Show ${whole(step)} more of ${whole(left)}` : `Show ${whole(left)} more`;

// About `count` round numbers between low and high, each with its text: [value, text] pairs.
function ticks(low, high, count = 5) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [[low, number(low)]];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const digits = step < 1 ? Math.min(9, Math.ceil(-Math.log10(step) - 1e-9)) : 0;
  const text = (value) => (step >= 1000 ? `${Number((value / 1000).toPrecision(4))}k` : value.toFixed(digits));
  const marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
    marks.push([k * step, text(k * step).replace("-", "−")]);
  }
  return marks;
}

// The colour behind a CSS variable in the theme that is shown now, as the canvas needs it.
function colour(name) {
  const probe = find("plot") ?? document.body;
  const before = probe.style.color;
  probe.style.color = `var(--${name})`;
  const value = getComputedStyle(probe).color;
  probe.style.color = before;
  return value;
}

// Five steps of a value from 0 to 1, each with a colour of its own.
const SHADES = ["step-4", "step-3", "step-2", "step-1", "step-0"];
const shadeOf = (value) => Math.max(0, Math.min(4, Math.floor(5 * (value || 0))));

function glyph(kind) {
  const shape = kind === "wrong" ? draw("path", { d: "M3 3 9 9M9 3 3 9" }) : draw("circle", { cx: 6, cy: 6, r: 3.4 });
  return draw("svg", { class: `glyph ${kind}`, viewBox: "0 0 12 12", "aria-hidden": "true" }, shape);
}

function copyButton(what, text, node) {
  const button = make("button", { type: "button", class: "quiet", "data-testid": "copy" }, what);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(node);
      button.textContent = "Refused here: it is selected, press Ctrl+C";
    }
    setTimeout(() => (button.textContent = what), 3000);
  });
  return button;
}
