// What every part of the page uses: the data, the state in location.hash, elements, colours.

const data = JSON.parse(document.getElementById("content").textContent);
const find = (selector) => document.querySelector(selector);

// An element; text is text, never markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Four significant digits, as short as they get.
const format = (value) => value === null || Number.isNaN(value) ? "none"
  : Math.abs(value) >= 1e5 ? value.toLocaleString("en", { maximumSignificantDigits: 4 })
  : String(Number(value.toPrecision(4)));
const unit = (meta) => meta.unit === "1" ? "" : ` ${meta.unit}`;
const named = (meta) => meta.unit === "1" ? meta.long_name : `${meta.long_name} [${meta.unit}]`;

// --- packed arrays -------------------------------------------------------------------------------

const types = { f4: Float32Array, f8: Float64Array, i2: Int16Array, i4: Int32Array };

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpack(id) {
  const element = document.getElementById(id);
  const type = element.dataset.type, width = Number(type[1]);
  const planes = await inflate(element.textContent);
  const count = planes.length / width, bytes = new Uint8Array(planes.length);
  for (let b = 0; b < width; b++) {
    for (let n = 0, from = b * count; n < count; n++) bytes[n * width + b] = planes[from + n];
  }
  return new types[type](bytes.buffer);
}

// The numbers of an array of the page, unpacked once and kept for a while.
const unpacked = new Map();
function array(id) {
  const found = unpacked.get(id) ?? unpack(id);
  unpacked.delete(id); // the one used last is the last to go
  unpacked.set(id, found);
  if (unpacked.size > 128) unpacked.delete(unpacked.keys().next().value);
  return found;
}

// --- state ---------------------------------------------------------------------------------------

const defaults = {
  run: 0, site: "self", layer: 0, head: 0, hide: "", scalar: "loss", x: "step", log: 0,
  stat: "entropy", view: "curves", at: null, step: null, probe: 0, scale: "sqrt", side: "query",
  token: null, value: null, prune_x: "kept", prune_y: "loss",
};
const state = { ...defaults };
const listeners = [];

const site = (run = state.run) => data.runs[run].sites[state.site] ?? {};
const visible = (run) => !state.hide.split(",").includes(String(run)) || run === state.run;
const shownRuns = () => data.runs.map((_, run) => run).filter(visible);

// Calls `update` when one of the keys has changed.
function on(keys, update) {
  listeners.push([keys, update]);
}

function union(lists) {
  return [...new Set(lists.flat())].sort((a, b) => a - b);
}

// Layers or heads of the site, whatever part of any run's data knows them.
function axis(name) {
  return union(data.runs.flatMap((run) => {
    const of = run.sites[state.site];
    return of ? [of.statistics, of.maps, of.analysis].map((part) => part?.[name] ?? []) : [];
  }));
}

const among = (value, options, otherwise) => options.includes(value) ? value : otherwise;
// The last option that is not above the value: the step before one that is not there.
const below = (value, options) =>
  value === null ? options.at(-1) : options.findLast((option) => option <= value) ?? options[0];

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
  const sites = Object.keys(data.runs[s.run].sites);
  s.site = among(s.site, sites, sites[0] ?? "self");
  s.layer = among(s.layer, axis("layers"), axis("layers")[0] ?? 0);
  s.head = among(s.head, axis("heads"), axis("heads")[0] ?? 0);
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

// Names of all statistics that any run has at this site.
function statistics() {
  return [...new Set(data.runs.flatMap((run) =>
    Object.keys(run.sites[state.site]?.statistics?.entries ?? {})))];
}

const lastSteps = () => ({ at: site().statistics?.steps.at(-1) ?? null,
  step: site().maps?.steps.at(-1) ?? null });

function set(changes) {
  const before = { ...state }, last = lastSteps();
  Object.assign(state, changes);
  // What was shown because it is the last step is the last one of another run, too.
  for (const key of ["at", "step"]) {
    if (!(key in changes) && state[key] === last[key]) state[key] = null;
  }
  normalise();
  const changed = Object.keys(state).filter((key) => state[key] !== before[key]);
  if (!changed.length) return;
  writeHash();
  for (const [keys, update] of listeners) {
    if (keys.some((key) => changed.includes(key))) update();
  }
}

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const read = { ...defaults };
  for (const key of Object.keys(defaults)) {
    if (!given.has(key)) continue;
    const numeric = typeof defaults[key] === "number" || ["at", "step", "token"].includes(key);
    const value = numeric ? Number(given.get(key)) : given.get(key);
    if (!Number.isNaN(value)) read[key] = value;
  }
  return read;
}

function writeHash() {
  // The last step is not said, so that a page made anew from a longer log shows its last step.
  const usual = { ...defaults, ...lastSteps() };
  const said = Object.entries(state).filter(([key, value]) => value !== usual[key]);
  history.replaceState(null, "", said.length ? `#${new URLSearchParams(said)}` : location.pathname
    + location.search);
}

// --- controls ------------------------------------------------------------------------------------

// Fills a select with [value, text] pairs, and shows the current one.
function fill(select, options, current) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
    select.dataset.options = wanted;
  }
  select.value = String(current);
}

// A select that sets one key of the state.
function bind(id, numeric = false) {
  const select = find(`#${id}`), key = id.replace("-", "_");
  select.addEventListener("change", () =>
    set({ [key]: numeric ? Number(select.value) : select.value }));
  return select;
}

// Radio buttons that set one key of the state.
function bindRadio(name) {
  const radios = [...document.querySelectorAll(`input[name="${name}"]`)];
  const show = () => radios.forEach((radio) => { radio.checked = radio.value === state[name]; });
  radios.forEach((radio) => radio.addEventListener("change", () => set({ [name]: radio.value })));
  on([name], show);
  return show;
}

// --- colours -------------------------------------------------------------------------------------

const sample = document.body.appendChild(make("span", { hidden: "" }));
function css(name) { // light or dark, as the browser resolves it
  sample.style.color = `var(${name})`;
  return getComputedStyle(sample).color;
}
const dash = (run) => ["", "6 3", "2 2", "8 2 2 2"][Math.floor(run / 7) % 4];
const runColour = (run) => `var(--run${run % 7})`;

const mix = (from, to, share) => from.map((c, n) => Math.round(c + (to[n] - c) * share));

// cividis (Nuñez, Anderton and Renslow 2018) and PuOr (ColorBrewer), 11 stops each.
const stops = {
  sequential: ["#00224e", "#083370", "#35456c", "#4f576c", "#666970", "#7d7c78", "#948e77",
    "#aea371", "#c8b866", "#e5cf52", "#fee838"],
  diverging: ["#2d004b", "#542788", "#8073ac", "#b2abd2", "#d8daeb", "#f7f7f7", "#fee0b6",
    "#fdb863", "#e08214", "#b35806", "#7f3b08"],
};
const tables = Object.fromEntries(Object.entries(stops).map(([name, colours]) => {
  const table = new Uint8Array(256 * 3);
  const parts = colours.map((c) => [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)));
  for (let n = 0; n < 256; n++) {
    const at = n / 255 * (parts.length - 1), low = Math.min(Math.floor(at), parts.length - 2);
    table.set(mix(parts[low], parts[low + 1], at - low), 3 * n);
  }
  return [name, table];
}));

// A background, and what can be read on it.
const legible = ([r, g, b]) => ({ paper: `rgb(${r},${g},${b})`,
  ink: 0.3 * r + 0.59 * g + 0.11 * b > 125 ? "#000" : "#fff" });

// The colours of a share in 0..1.
function shade(name, share) {
  const at = 3 * Math.max(0, Math.min(255, Math.round(share * 255)));
  return legible(tables[name].slice(at, at + 3));
}

// Redraws what has colours of its own when light turns dark.
const onTheme = [];
function themeChanged() {
  onTheme.forEach((update) => update());
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
