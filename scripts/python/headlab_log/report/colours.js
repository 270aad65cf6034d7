// Colours of runs, of numbers and of the page, light or dark.
import { data } from "./data.js";
import { make, makeSvg } from "./elements.js";

const sample = document.body.appendChild(make("span", { hidden: "" }));

/**
 * A colour of the page's style, as the browser resolves it.
 * @param {string} name
 */
export function css(name) {
  sample.style.color = `var(${name})`;
  return getComputedStyle(sample).color;
}
// Of the n-th line: seven colours, and dashes for each seven.
/** @param {number} n */
export const lineDash = (n) => ["", "6 3", "2 2", "8 2 2 2"][Math.floor(n / 7) % 4];
/** @param {number} n */
export const lineColour = (n) => `var(--run${n % 7})`;

/**
 * Which line a run is: of a comparison that of its arm.
 * @param {number} run
 */
export const lineOf = (run) => data.runs[run].colour ?? run;
/** @param {number} run */
export const dash = (run) => lineDash(lineOf(run));
/** @param {number} run */
export const runColour = (run) => lineColour(lineOf(run));

/**
 * A short piece of a line.
 * @param {string} colour
 * @param {string} dashes
 */
export function swatch(colour, dashes) {
  const box = makeSvg("svg", { class: "swatch", viewBox: "0 0 32 12", "aria-hidden": "true" });
  const line = makeSvg("line", { x1: 0, x2: 32, y1: 6, y2: 6, "stroke-width": 4,
    style: `stroke:${colour}` });
  if (dashes) line.setAttribute("stroke-dasharray", dashes);
  box.append(line);
  return box;
}

/** @typedef {ArrayLike<number>} Rgb red, green and blue, 0 to 255 */

/** @type {(from: number[], to: Rgb, share: number) => number[]} */
export const mix = (from, to, share) => from.map((c, n) => Math.round(c + (to[n] - c) * share));

/** @param {string} colour as css() gives it */
export const parse = (colour) => (colour.match(/\d+/g) ?? []).slice(0, 3).map(Number);

/** Of negative and positive weights where there is no table, as in maps. */
export const signs = [[128, 115, 172], [224, 130, 20]];

// cividis (Nuñez, Anderton and Renslow 2018) and PuOr (ColorBrewer), 11 stops each.
const stops = {
  sequential: ["#00224e", "#083370", "#35456c", "#4f576c", "#666970", "#7d7c78", "#948e77",
    "#aea371", "#c8b866", "#e5cf52", "#fee838"],
  diverging: ["#2d004b", "#542788", "#8073ac", "#b2abd2", "#d8daeb", "#f7f7f7", "#fee0b6",
    "#fdb863", "#e08214", "#b35806", "#7f3b08"],
};

/**
 * 256 colours between the stops, three bytes each.
 * @param {string[]} colours
 */
function tableOf(colours) {
  const table = new Uint8Array(256 * 3);
  const parts = colours.map((c) => [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)));
  for (let n = 0; n < 256; n++) {
    const at = n / 255 * (parts.length - 1), low = Math.min(Math.floor(at), parts.length - 2);
    table.set(mix(parts[low], parts[low + 1], at - low), 3 * n);
  }
  return table;
}
export const tables = { sequential: tableOf(stops.sequential),
  diverging: tableOf(stops.diverging) };

/** @typedef {{ paper: string, ink: string }} Colours a background, and what can be read on it */

/** @type {(colour: Rgb) => Colours} */
export const legible = ({ 0: r, 1: g, 2: b }) => ({ paper: `rgb(${r},${g},${b})`,
  ink: 0.3 * r + 0.59 * g + 0.11 * b > 125 ? "#000" : "#fff" });

/**
 * The colours of a share in 0..1.
 * @param {keyof typeof tables} name
 * @param {number} share
 */
export function shade(name, share) {
  const at = 3 * Math.max(0, Math.min(255, Math.round(share * 255)));
  return legible(tables[name].slice(at, at + 3));
}

/**
 * Redraws what has colours of its own when light turns dark.
 * @type {(() => unknown)[]}
 */
export const onTheme = [];
export function themeChanged() {
  onTheme.forEach((update) => update());
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
