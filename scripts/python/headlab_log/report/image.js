// The image of a probe: its pixels, and over its patches the weights of one token.
import { imageCanvas, prepare } from "./canvas.js";
import { css, parse, signs } from "./colours.js";
import { find } from "./elements.js";
import { set, state } from "./state.js";
import { activeToken, asWeight, largest, pointed, shareOf, view, weightOf } from "./view.js";

/** @typedef {import("./data.js").Image} Image */
/** @typedef {import("./view.js").Token} Token */

const TINT = 0.75; // opacity of the largest weight: what lies under it can still be seen
const WIDEST = 420;

/** CSS pixels a side of a patch, as drawn. */
let patchSide = 1;

/**
 * The token whose weights are shown: the class token where none is chosen.
 * @returns {Token}
 */
const shownToken = () => activeToken() ?? { side: state.side, token: 0 };

/** @param {Image} about */
const columnsOf = ({ columns, patch }) => columns / patch;

/**
 * @param {Image} about
 * @param {import("./data.js").Packed} bytes
 */
function pixelsOfImage({ channels, rows, columns }, bytes) {
  const size = rows * columns;
  return imageCanvas(columns, rows, ({ data }) => {
    for (let n = 0; n < size; n++) {
      for (let c = 0; c < 3; c++) data[4 * n + c] = bytes[(channels < 3 ? 0 : c) * size + n];
      data[4 * n + 3] = 255;
    }
  });
}

export function drawImage() {
  const { image: bytes, maps: { image: about } } = view;
  find("#image").hidden = !about || !bytes;
  if (!about || !bytes) return;
  const { rows, columns, patch } = about;
  const fits = Math.min(WIDEST, find("#image-box").clientWidth) / columns;
  const scale = fits >= 1 ? Math.floor(fits) : fits; // whole pixels where there is room
  const context = prepare("#image-canvas", columns * scale, rows * scale);
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(pixelsOfImage(about, bytes), 0, 0, columns * scale, rows * scale);
  patchSide = patch * scale;
  const active = shownToken(), weights = patchWeights(about, active);
  tint(context, about, weights);
  outline(context, about, active);
  sayImage(about, active, weights);
}

/**
 * The weight of every patch; empty: there is no such head.
 * @param {Image} about
 * @param {Token} active
 */
function patchWeights({ ahead }, active) {
  const { matrix } = view, length = (active.side === "query" ? view.keys : view.queries) - ahead;
  return matrix ? Array.from({ length }, (_, n) => weightOf(active, matrix, ahead + n)) : [];
}

/**
 * Where a patch is drawn.
 * @param {Image} about
 * @param {number} n
 * @returns {[number, number, number, number]}
 */
const boxOf = (about, n) => [n % columnsOf(about) * patchSide,
  Math.floor(n / columnsOf(about)) * patchSide, patchSide, patchSide];

/** @type {(context: CanvasRenderingContext2D, about: Image, weights: number[]) => void} */
function tint(context, about, weights) {
  const most = largest(weights), tinted = parse(css("--tint")), { signed } = view.maps;
  weights.forEach((weight, n) => {
    const share = shareOf(weight / most, 1);
    const [r, g, b] = signed ? signs[weight < 0 ? 0 : 1] : tinted;
    context.globalAlpha = TINT * (signed ? 2 * Math.abs(share - 0.5) : share);
    context.fillStyle = `rgb(${r},${g},${b})`;
    context.fillRect(...boxOf(about, n));
  });
  context.globalAlpha = 0.5;
  context.strokeStyle = css("--line");
  context.lineWidth = 1;
  weights.forEach((_, n) => context.strokeRect(...boxOf(about, n)));
  context.globalAlpha = 1;
}

/** @type {(context: CanvasRenderingContext2D, about: Image, active: Token) => void} */
function outline(context, about, { token }) {
  if (token < about.ahead) return;
  const [x, y, width, height] = boxOf(about, token - about.ahead);
  for (const [colour, line, inside] of /** @type {[string, number, number][]} */ (
    [["--mark", 3, 1.5], ["--paper", 1, 3.5]])) { // two, of which one is seen on any image
    context.strokeStyle = css(colour);
    context.lineWidth = line;
    context.strokeRect(x + inside, y + inside, width - 2 * inside, height - 2 * inside);
  }
}

/** @type {(about: Image, active: Token, weights: number[]) => void} */
function sayImage(about, active, weights) {
  const { ahead, rows, columns } = about, { side, token } = active, { matrix } = view;
  const name = token < ahead ? "The class token" : `Patch ${view[side][token]}`;
  const other = view[side === "query" ? "key" : "query"], to = side === "query" ? "to" : "by";
  const verb = side === "query" ? "attends to" : "is attended by";
  const most = weights.indexOf(Math.max(...weights));
  find("#image-shown").textContent = !matrix ? "There is no such head, or its maps were not logged."
    : `${name} ${verb} ${token < ahead ? "itself" : "the class token"}, which is no patch, with `
    + `${asWeight(weightOf(active, matrix, 0))}, and among patches most ${to} `
    + `${other[ahead + most]}, with ${asWeight(weights[most])}.`;
  find("#image-canvas").setAttribute("aria-label", `image of probe ${state.probe}, ${columns} by `
    + `${rows} pixels, ${columns / about.patch} by ${rows / about.patch} patches coloured by their `
    + `weights for ${name.toLowerCase()}; arrow keys choose a patch, Escape the class token`);
}

/**
 * The token of the patch that an event hit.
 * @param {MouseEvent} event
 * @returns {Token | null}
 */
export function patchAt(event) {
  const { image: about } = view.maps, box = find("#image-canvas").getBoundingClientRect();
  if (!about) return null;
  const row = Math.floor((event.clientY - box.top) / patchSide);
  const column = Math.floor((event.clientX - box.left) / patchSide);
  const token = about.ahead + row * columnsOf(about) + column;
  const hit = row >= 0 && column >= 0 && column < columnsOf(about);
  return hit && token < view[state.side].length ? { side: state.side, token } : null;
}

/** @param {KeyboardEvent} event */
export function walkPatches(event) {
  /** @type {Record<string, number[]>} */
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const { image: about } = view.maps, move = moves[event.key];
  if (event.key === "Escape") return set({ token: null });
  if (!about || !move) return;
  event.preventDefault();
  pointed.token = null;
  const wide = columnsOf(about), from = (state.token ?? -1) - about.ahead;
  const column = from % wide + move[1], to = from + move[0] * wide + move[1];
  const last = view[state.side].length - about.ahead;
  if (from < 0) set({ token: about.ahead });
  else if (column >= 0 && column < wide && to >= 0 && to < last) set({ token: about.ahead + to });
}
