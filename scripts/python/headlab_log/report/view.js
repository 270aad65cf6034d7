// What the attention viewer shows: the maps of one step and probe, and where the reader points.
import { find } from "./elements.js";
import { indexOf, state } from "./state.js";

/** @typedef {"query" | "key"} Side of a map */
/** @typedef {{ side: Side, token: number }} Token */
/** @typedef {{ query: number, key: number }} Cell */

/**
 * @typedef {object} View
 * @property {string | null} of what is drawn: run, site, step and probe; null: nothing
 * @property {string} wanted what will be, once it is unpacked
 * @property {import("./data.js").Packed} values thousandths, of every head after the other
 * @property {number} missing the value of a head that is not there
 * @property {import("./data.js").Maps} maps
 * @property {string[]} query the tokens
 * @property {string[]} key
 * @property {number} queries how many
 * @property {number} keys
 * @property {boolean} lower nothing attends ahead, and only the triangle is kept
 * @property {import("./data.js").Packed | null} image bytes (channel, row, column); null: a text
 * @property {Side[]} strips of tokens: one where queries and keys are the same
 * @property {Float32Array | null} matrix weights of the selected head; null: there is none
 * @property {number} most the largest of them
 */

/** Filled by drawAttention (viewer.js) before anything reads it. */
export const view = /** @type {View} */ ({ of: null, wanted: "" });

/**
 * Under the pointer, or the keyboard's cursor; the state holds the token that was clicked.
 * @type {{ token: Token | null, cell: Cell | null }}
 */
export const pointed = { token: null, cell: null };

/**
 * The token whose weights are shown, and which side of the map it is on.
 * @returns {Token | null}
 */
export function activeToken() {
  return pointed.token ?? (state.token === null ? null : { side: state.side, token: state.token });
}

/**
 * The weight between the active token and another of the other side.
 * @param {Token} active
 * @param {Float32Array} matrix
 * @param {number} other
 */
export const weightOf = ({ side, token }, matrix, other) =>
  matrix[side === "query" ? token * view.keys + other : other * view.keys + token];

/** @param {number} number */
export const asWeight = (number) => Math.abs(number) < 0.0005 ? "0" : number.toFixed(3);

/**
 * What is needed of maps to draw one: those of the view, or of another run beside it.
 * @typedef {Pick<View, "values" | "missing" | "maps" | "queries" | "keys" | "lower">} Shown
 */

/**
 * The weights (query, key) of one head as numbers; null: there is no such head.
 * @param {number} layer
 * @param {number} head
 * @param {Shown} from
 */
export function matrixOf(layer, head, from = view) {
  const { values, missing, lower, maps, queries, keys } = from;
  const n = indexOf(maps, layer, head), size = lower ? queries * (queries + 1) / 2 : queries * keys;
  if (n < 0 || values[n * size] === missing) return null;
  const found = new Float32Array(queries * keys);
  for (let q = 0, first = n * size; q < queries; q++) {
    const length = lower ? q + 1 : keys;
    for (let k = 0; k < length; k++) found[q * keys + k] = values[first + k] / 1000;
    first += length;
  }
  return found;
}

/**
 * 0..1 for the colours: of weights 0..1, of signed ones -most..most.
 * @param {number} value
 * @param {number} most
 * @param {boolean} signed
 */
export function shareOf(value, most, signed = view.maps.signed) {
  /** @type {(x: number) => number} */
  const curve = state.scale === "sqrt" ? Math.sqrt : (x) => x;
  if (!signed) return curve(Math.max(0, Math.min(1, value)));
  return 0.5 + Math.sign(value) * curve(Math.min(1, Math.abs(value) / most)) / 2;
}

/**
 * @param {import("./data.js").Packed} values
 * @param {import("./data.js").Maps} maps
 * @param {string} id of the element that holds them
 * @param {number} probe
 */
export function shownOf(values, maps, id, probe) {
  const n = maps.probes.indexOf(probe), missing = values instanceof Int16Array ? -(2 ** 15)
    : -(2 ** 31);
  return { values, missing, maps, query: maps.query[n], key: maps.key[n],
    queries: maps.query[n].length, keys: maps.key[n].length,
    lower: "lower" in find(`#${id}`).dataset };
}

/** @param {Iterable<number>} values */
export function largest(values) {
  let most = 1e-9;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most;
}

/**
 * @param {string} token
 * @param {number} most characters
 */
export const clip = (token, most) => token.length > most ? `${token.slice(0, most - 1)}…` : token;
