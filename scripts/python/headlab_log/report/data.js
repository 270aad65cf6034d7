// What the page knows: its content as data.py wrote it, packed arrays, names of quantities.
import { find } from "./elements.js";

/**
 * @typedef {{ unit: string, long_name: string, comment: string }} Meta of a variable
 * @typedef {(number | null)[]} Numbers of heads or rounds; null: there is none
 *
 * @typedef {object} Content
 * @property {string} title
 * @property {string} made when
 * @property {string} program what headlab is called by in commands
 * @property {string | null} version of a page that is served
 * @property {string[]} left_out for want of space, in sentences
 * @property {Record<"scalars" | "heads" | "analysis" | "roles", Record<string, Meta>>} variables
 * @property {Run[]} runs
 * @property {(string | null)[][]} differences a setting, and its text in every run
 * @property {Comparison | null} comparison what the runs are of
 *
 * @typedef {object} Run
 * @property {string} label
 * @property {number | null} colour the place of its arm in a comparison
 * @property {string[]} notes
 * @property {string} kind
 * @property {string} code of its kinds of heads: 8 digits of their digest
 * @property {number | null} seed
 * @property {string} state
 * @property {string} path
 * @property {string} config
 * @property {string} manifest
 * @property {Heading} heading
 * @property {Record<string, Curves>} curves `train`, `eval` and, of other examples, `eval1`, ...
 * @property {Record<string, Site>} sites
 * @property {Pruning | null} pruning
 *
 * @typedef {object} Heading
 * @property {number | null} step
 * @property {number | null} steps
 * @property {number | null} train_loss
 * @property {Record<string, number | null>} val_losses by what they were measured on
 * @property {number | null} seconds
 * @property {Parameters} parameters
 * @property {References | null} references
 *
 * @typedef {{ trained: number | null, total: number | null }} Parameters
 * @typedef {{ measured: string, rows: Reference[] }} References `measured`: on what
 * @typedef {object} Reference
 * @property {string} name
 * @property {number | null} loss
 * @property {Record<string, number | null>} values of other metrics
 * @property {string} how it is made
 * @typedef {{ names: string[], rows: number, of: number, measured: string, id: string }} Curves
 *   `of`: rows logged; measured: on what, of evaluations
 * @typedef {object} Site
 * @property {Statistics | null} statistics
 * @property {Analysis | null} analysis
 * @property {Maps} [maps]
 * @property {string[]} [words] what every head does
 * @property {number[] | null} [unlike] layer and head of the one least like the others
 *
 * @typedef {object} Statistics
 * @property {number[]} steps
 * @property {number} of how many steps were logged
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {Record<string, { id: string, heads: boolean }>} entries `heads`: not of layers
 *
 * @typedef {object} Analysis
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {Record<string, Numbers>} values
 * @property {Record<string, string>} measured on what each value and role was; "": not known, or
 *   on no examples
 * @property {Record<string, Numbers>} roles
 * @property {Numbers | null} points in the plane, x and y of every head
 * @property {Meta & { share: number | null, measured: string }} [plane]
 * @property {boolean} analyzed
 * @property {boolean} ablated
 *
 * @typedef {object} Maps
 * @property {string} prefix
 * @property {number[]} steps
 * @property {number[]} probes
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {boolean} signed
 * @property {string[][]} query tokens of every probe
 * @property {string[][]} key
 * @property {Image | null} image what its positions are cut from; null: tokens of a text
 *
 * @typedef {object} Image
 * @property {number} channels
 * @property {number} rows of pixels
 * @property {number} columns
 * @property {number} patch pixels a side
 * @property {number} ahead positions of the class token, before the first patch
 *
 * @typedef {object} Pruning
 * @property {Record<string, Meta>} names
 * @property {Record<string, Numbers>} values
 * @property {string[][]} removed
 *
 * @typedef {object} Comparison
 * @property {string} name
 * @property {string} baseline
 * @property {number[]} seeds
 * @property {string[]} first whether its order has settled, in sentences
 * @property {ComparedTask[]} tasks
 * @property {number[]} hidden runs whose curves are not shown at first
 *
 * @typedef {object} ComparedTask
 * @property {string} name
 * @property {Block[]} blocks
 * @property {string[]} notices
 * @property {Arm[]} arms
 * @property {Record<string, (Difference | null)[]>} differences of a metric, an arm each
 * @property {(Solved | null)[] | null} solved of an arm each; null: a task that is not solved or not
 * @property {Record<string, number>} references losses that need no training
 * @property {string[]} banded arms whose 95 % band is drawn
 * @property {[number, number] | null} range of the losses that the curves show
 *
 * @typedef {{ text?: string, items?: string[], head?: string[], rows?: string[][] }} Block
 *   a sentence, a list or a table
 * @typedef {[number, number | null, number | null, boolean]} Difference
 *   mean, low and high end of its interval, whether it is reported
 * @typedef {[number, number | null, boolean]} Solved
 *   seeds that solved the task, p of Fisher's exact test after Holm, whether it is reported
 *
 * @typedef {object} Arm
 * @property {string} name
 * @property {string} reason why it has no statistics; "": it has
 * @property {[number, number][]} runs number on the page, and seed
 * @property {number[]} steps of its curve
 * @property {Numbers} val_loss
 * @property {Numbers} low
 * @property {Numbers} high
 */

/** @type {Content} */
export const data = JSON.parse(find("#content").textContent ?? "");

// --- how quantities are written ------------------------------------------------------------------

/**
 * Four significant digits, as short as they get.
 * @param {number | null} value
 */
export const format = (value) => value === null || Number.isNaN(value) ? "none"
  : Math.abs(value) >= 1e5 ? value.toLocaleString("en", { maximumSignificantDigits: 4 })
  : String(Number(value.toPrecision(4)));
/** @param {Meta} meta */
export const unit = (meta) => meta.unit === "1" ? "" : ` ${meta.unit}`;
/** @param {Meta} meta */
export const named = (meta) => meta.unit === "1" ? meta.long_name
  : `${meta.long_name} [${meta.unit}]`;

// --- what curves can be drawn of -----------------------------------------------------------------

/** @type {Record<string, string>} */
export const xNames = { step: "step", tokens: "training tokens [token]",
  wall_time: "time of training [s]" };

// Names of what can be chosen: the losses together, then every other scalar by itself.
export function scalarNames() {
  const names = data.runs.flatMap((run) => Object.values(run.curves).flatMap((part) => part.names));
  return ["loss", ...new Set(names.filter((name) => !(name in xNames)))];
}

/**
 * What any run knows of its rounds of pruning.
 * @returns {Record<string, Meta>}
 */
export function pruningVariables() {
  return Object.assign({}, ...data.runs.map((run) => run.pruning?.names));
}

// Names of what can be drawn of it: up, and across. What the uncut model became is drawn beside.
export function pruningNames() {
  const names = Object.keys(pruningVariables()).filter((name) => !name.startsWith("uncut_"));
  const across = ["kept", "parameters", "flops"];
  return [names.filter((name) => !across.includes(name) && name !== "seconds"),
    across.filter((name) => names.includes(name))];
}

// --- packed arrays -------------------------------------------------------------------------------

/** @typedef {Float32Array | Float64Array | Int16Array | Int32Array | Uint8Array} Packed */

/** @type {Record<string, new (buffer: ArrayBuffer) => Packed>} */
const types = { f4: Float32Array, f8: Float64Array, i2: Int16Array, i4: Int32Array,
  u1: Uint8Array };

/** @param {string} text gzip, base64 */
export async function inflate(text) {
  const packed = atob(text), bytes = new Uint8Array(packed.length);
  // Uint8Array.from() takes ten times as long, half a second for Plotly.
  for (let n = 0; n < packed.length; n++) bytes[n] = packed.charCodeAt(n);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {string} id */
async function unpack(id) {
  const element = find(`#${id}`);
  const type = element.dataset.type ?? "", width = Number(type[1]);
  const planes = await inflate(element.textContent ?? "");
  const count = planes.length / width, bytes = new Uint8Array(planes.length);
  for (let b = 0; b < width; b++) {
    for (let n = 0, from = b * count; n < count; n++) bytes[n * width + b] = planes[from + n];
  }
  return new types[type](bytes.buffer);
}

/** @type {Map<string, Promise<Packed>>} */
const unpacked = new Map();

/**
 * The numbers of an array of the page, unpacked once and kept for a while.
 * @param {string} id
 */
export function array(id) {
  const found = unpacked.get(id) ?? unpack(id);
  unpacked.delete(id); // the one used last is the last to go
  unpacked.set(id, found);
  if (unpacked.size > 128) unpacked.delete(unpacked.keys().next().value ?? "");
  return found;
}
