// What is selected, which location.hash says too, and who is told when it changes.
import { data, pruningNames, scalarNames, xNames } from "./data.js";

/**
 * @typedef {object} State
 * @property {number} run
 * @property {string} site
 * @property {number} layer
 * @property {number} head
 * @property {string} hide numbers of hidden runs, with commas between
 * @property {string} scalar
 * @property {string} x
 * @property {number} log 1: the scalars' axis is logarithmic
 * @property {string} stat
 * @property {string} view
 * @property {number | null} at step of the grid; null: the last
 * @property {number | null} step of the maps; null: the last
 * @property {number} probe
 * @property {number | null} beside run whose map stands beside; null: none
 * @property {string} scale
 * @property {"query" | "key"} side
 * @property {number | null} token
 * @property {string | null} value
 * @property {string} prune_x
 * @property {string} prune_y
 * @property {number} task of a comparison
 * @property {string} metric whose differences are shown; "solved": how many seeds solved the task
 */

/** @type {State} */
const defaults = {
  run: 0, site: "self", layer: 0, head: 0, hide: "", scalar: "loss", x: "step", log: 0,
  stat: "entropy", view: "curves", at: null, step: null, probe: 0, beside: null, scale: "sqrt", side: "query",
  token: null, value: null, prune_x: "kept", prune_y: "loss", task: 0, metric: "val_loss",
};
export const state = { ...defaults };

/** @typedef {(keyof State)[]} Keys */
/** @type {[Keys, () => void][]} */
const listeners = [];

/** @type {(run?: number) => Partial<import("./data.js").Site>} */
export const site = (run = state.run) => data.runs[run]?.sites[state.site] ?? {};
/** @param {number} run */
export const visible = (run) => !state.hide.split(",").includes(String(run)) || run === state.run;
export const shownRuns = () => data.runs.map((_, run) => run).filter(visible);

/**
 * Calls `update` when one of the keys has changed.
 * @param {Keys} keys
 * @param {() => void} update
 */
export function on(keys, update) {
  listeners.push([keys, update]);
}

/** @param {number[][]} lists */
export function union(lists) {
  return [...new Set(lists.flat())].sort((a, b) => a - b);
}

/**
 * Layers or heads of the site, whatever part of any run's data knows them.
 * @param {"layers" | "heads"} name
 */
export function axis(name) {
  return union(data.runs.flatMap((run) => {
    const of = run.sites[state.site];
    return of ? [of.statistics, of.maps, of.analysis].map((part) => part?.[name] ?? []) : [];
  }));
}

/**
 * Where the number of a head stands in a list of all; -1: nowhere.
 * @param {{ layers: number[], heads: number[] }} part
 * @param {number} layer
 * @param {number} head
 */
export function indexOf({ layers, heads }, layer, head) {
  const l = layers.indexOf(layer), h = heads.indexOf(head);
  return l < 0 || h < 0 ? -1 : l * heads.length + h;
}

/**
 * The value where it is one of the options.
 * @template T
 * @template U
 * @param {T | null} value
 * @param {T[]} options
 * @param {U} otherwise
 * @returns {T | U}
 */
export const among = (value, options, otherwise) =>
  value !== null && options.includes(value) ? value : otherwise;

/**
 * The last option that is not above the value: the step before one that is not there.
 * @param {number | null} value
 * @param {number[]} options
 */
const below = (value, options) => (value === null ? options.at(-1)
  : options.filter((option) => option <= value).at(-1)) ?? options[0];

// Makes the state one that there is: another run may have no such site, step or head, and a link
// made on another page may ask for anything.
function normalise() {
  const s = state, [ys, xs] = pruningNames();
  s.scalar = among(s.scalar, scalarNames(), "loss");
  s.x = among(s.x, Object.keys(xNames), "step");
  s.log = among(s.log, [0, 1], 0);
  s.view = among(s.view, ["curves", "values"], "curves");
  s.scale = among(s.scale, ["sqrt", "linear"], "sqrt");
  s.side = among(s.side, ["query", "key"], "query");
  s.prune_y = among(s.prune_y, ys, ys[0] ?? defaults.prune_y);
  s.prune_x = among(s.prune_x, xs, xs[0] ?? defaults.prune_x);
  s.run = among(s.run, data.runs.map((_, run) => run), 0);
  const sites = Object.keys(data.runs[s.run]?.sites ?? {});
  s.site = among(s.site, sites, sites[0] ?? "self");
  s.layer = among(s.layer, axis("layers"), axis("layers")[0] ?? 0);
  s.head = among(s.head, axis("heads"), axis("heads")[0] ?? 0);
  const tasks = data.comparison?.tasks ?? [];
  s.task = among(s.task, tasks.map((_, n) => n), 0);
  s.metric = among(s.metric, measures(s.task), measures(s.task)[0] ?? "val_loss");
  const names = statistics();
  s.stat = among(s.stat, names, names[0] ?? "entropy");
  const { statistics: logged, maps } = site();
  if (logged) s.at = below(s.at, logged.steps);
  if (maps) {
    s.step = below(s.step, maps.steps);
    s.probe = among(s.probe, maps.probes, maps.probes[0]);
    const tokens = maps[s.side][maps.probes.indexOf(s.probe)];
    if (s.token !== null && !(s.token >= 0 && s.token < tokens.length)) s.token = null;
  }
}

/**
 * What the arms of a compared task can be shown by; first what says most.
 * @param {number} task
 */
export function measures(task) {
  const compared = data.comparison?.tasks[task];
  return compared ? [...(compared.solved ? ["solved"] : []), ...Object.keys(compared.differences)] : [];
}

// Names of all statistics that any run has at this site.
export function statistics() {
  return [...new Set(data.runs.flatMap((run) =>
    Object.keys(run.sites[state.site]?.statistics?.entries ?? {})))];
}

const lastSteps = () => ({ at: site().statistics?.steps.at(-1) ?? null,
  step: site().maps?.steps.at(-1) ?? null });

/** @param {Partial<State>} changes */
export function set(changes) {
  const before = { ...state }, last = lastSteps();
  Object.assign(state, changes);
  // What was shown because it is the last step is the last one of another run, too.
  for (const key of /** @type {const} */ (["at", "step"])) {
    if (!(key in changes) && state[key] === last[key]) state[key] = null;
  }
  normalise();
  const keys = /** @type {Keys} */ (Object.keys(state));
  const changed = keys.filter((key) => state[key] !== before[key]);
  if (!changed.length) return;
  writeHash();
  for (const [watched, update] of listeners) {
    if (watched.some((key) => changed.includes(key))) update();
  }
}

/** @returns {State} */
function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  /** @type {Record<string, string | number | null>} */
  const read = { ...defaults };
  for (const [key, usual] of Object.entries(defaults)) {
    const text = given.get(key);
    if (text === null) continue;
    const numeric = typeof usual === "number" || ["at", "step", "token", "beside"].includes(key);
    const value = numeric ? Number(text) : text;
    if (!Number.isNaN(value)) read[key] = value;
  }
  return /** @type {any} */ (read); // what it asks for may not be there: normalise() sees to that
}

function writeHash() {
  // The last step is not said, so that a page made anew from a longer log shows its last step.
  /** @type {Record<string, string | number | null>} */
  const usual = { ...defaults, ...lastSteps() };
  const said = Object.entries(state).filter(([key, value]) => value !== usual[key])
    .map(([key, value]) => [key, String(value)]);
  history.replaceState(null, "", said.length ? `#${new URLSearchParams(said)}` : location.pathname
    + location.search);
}

// Takes the state from the address, now and whenever the reader changes that.
export function startState() {
  // Opened at the head that is least like the others, where it is known.
  const first = Object.values(data.runs[0]?.sites ?? {})[0]?.unlike;
  if (first) [defaults.layer, defaults.head] = first;
  defaults.beside = data.runs.length > 1 ? 1 : null;
  defaults.metric = measures(0)[0] ?? "val_loss";
  defaults.hide = data.comparison?.hidden.join(",") ?? ""; // whoever follows an arm sees its run
  Object.assign(state, readHash());
  normalise();
  addEventListener("hashchange", () => set(readHash()));
}
