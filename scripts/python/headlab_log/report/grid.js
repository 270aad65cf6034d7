// Layer x head: a grid of buttons that arrow keys walk through, and in it small multiples.
import { dash, legible, runColour, shade } from "./colours.js";
import { bind, bindRadio, fill } from "./controls.js";
import { array, data, format, named, unit } from "./data.js";
import { around, find, make, makeSvg } from "./elements.js";
import { on, set, shownRuns, site, state, statistics, union } from "./state.js";

export class HeadGrid {
  /**
   * @param {HTMLElement} container
   * @param {string} name what the grid shows, for screen readers
   */
  constructor(container, name) {
    this.container = container;
    /** @type {Map<string, HTMLButtonElement>} */
    this.cells = new Map();
    this.made = "";
    this.perLayer = false;
    this.size = [0, 0];
    container.classList.add("heads");
    container.setAttribute("role", "grid");
    container.setAttribute("aria-label", name);
    container.addEventListener("keydown", (event) => this.walk(event));
    container.addEventListener("click", (event) => {
      const cell = around(event, ".cell");
      if (cell) this.select(cell);
    });
  }

  /**
   * Makes the cells unless they are there already.
   * @param {number[]} layers
   * @param {number[] | null} columns null: one cell a layer
   */
  shape(layers, columns) {
    const wanted = JSON.stringify([layers, columns]);
    if (this.made === wanted) return;
    this.made = wanted;
    this.perLayer = columns === null;
    const heads = columns ?? [null];
    this.container.style.setProperty("--columns", String(heads.length));
    const top = make("div", { role: "row" }, make("span", { class: "axis", role: "columnheader" },
      ""), ...heads.map((head) => make("span", { class: "axis", role: "columnheader" },
      this.perLayer ? "all heads" : heads.length > 8 ? `${head}` : `head ${head}`)));
    this.cells = new Map();
    const rows = layers.map((layer) => make("div", { role: "row" },
      make("span", { class: "axis", role: "rowheader", title: `layer ${layer}` }, `L${layer}`),
      ...heads.map((head) => {
        const cell = make("button", { type: "button", class: "cell", role: "gridcell",
          "data-layer": layer, tabindex: -1 });
        if (head !== null) cell.dataset.head = String(head);
        this.cells.set(`${layer}.${head}`, cell);
        return cell;
      })));
    this.container.replaceChildren(top, ...rows);
    this.size = [layers.length, heads.length];
    this.mark();
  }

  // Shows which head is selected.
  mark() {
    /** @type {HTMLElement | undefined} */
    let focusable;
    for (const cell of this.cells.values()) {
      const chosen = Number(cell.dataset.layer) === state.layer
        && (this.perLayer || Number(cell.dataset.head) === state.head);
      cell.setAttribute("aria-selected", String(chosen));
      cell.tabIndex = -1;
      if (chosen) focusable = cell;
    }
    focusable ??= this.cells.values().next().value;
    if (focusable) focusable.tabIndex = 0;
  }

  /** @param {HTMLElement} cell */
  select(cell) {
    const head = this.perLayer ? {} : { head: Number(cell.dataset.head) };
    set({ layer: Number(cell.dataset.layer), ...head });
  }

  /** @param {KeyboardEvent} event */
  walk(event) {
    const cells = [...this.cells.values()], [rows, columns] = this.size;
    const at = cells.findIndex((cell) => cell === document.activeElement);
    if (at < 0) return;
    const row = Math.floor(at / columns), column = at % columns;
    const to = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, columns - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    if (to[0] < 0 || to[0] >= rows || to[1] < 0 || to[1] >= columns) return;
    cells[at].tabIndex = -1;
    const next = cells[to[0] * columns + to[1]];
    next.tabIndex = 0;
    next.focus();
  }
}

// --- statistics over training ----------------------------------------------------------------

const statGrid = new HeadGrid(find("#stat-grid"), "statistic of every head");

/**
 * @typedef {object} Part the selected statistic of one run
 * @property {number} run
 * @property {number[]} steps
 * @property {number} of how many steps were logged
 * @property {boolean} perLayer
 * @property {(layer: number, head: number) => Float32Array | null} curve null: no such head
 */

/**
 * The selected statistic of the runs that are shown.
 * @returns {Promise<Part[]>}
 */
export async function statisticOfRuns() {
  const logged = shownRuns().flatMap((run) => {
    const found = site(run).statistics;
    return found?.entries[state.stat] ? [{ run, ...found }] : [];
  });
  return Promise.all(logged.map(async ({ run, steps, of, layers, heads, entries }) => {
    const { id, heads: perHead } = entries[state.stat];
    const values = await array(id), width = perHead ? heads.length : 1;
    /** @type {Part["curve"]} */
    const curve = (layer, head) => {
      const l = layers.indexOf(layer), h = perHead ? heads.indexOf(head) : 0;
      if (l < 0 || h < 0) return null;
      const at = l * width + h, found = new Float32Array(steps.length);
      for (let n = 0; n < steps.length; n++) found[n] = values[n * layers.length * width + at];
      return found.every(Number.isNaN) ? null : found;
    };
    return { run, steps, of, perLayer: !perHead, curve };
  }));
}

/**
 * The least and the largest number, never the same.
 * @param {Iterable<number>[]} lists
 */
export function limits(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/**
 * The ends of a colour scale of these numbers: where nobody knows how surely they are, it spans at
 * least a twentieth of the largest, so that what hardly differs looks alike.
 * @param {number[]} scale as limits() gives it
 */
export function colourEnds([low, high]) {
  const least = Math.max(-low, high) / 20, middle = (low + high) / 2;
  return high - low >= least ? [low, high] : [middle - least / 2, middle + least / 2];
}

/**
 * The numbers that cells are coloured by. Two that differ by less than the larger of their
 * intervals get one number, and so does what is linked through others between them.
 * @param {(number | null)[]} values
 * @param {(number | null)[]} intervals half of each, as it is known to plus or minus
 */
export function toldApart(values, intervals) {
  const shown = [...values];
  const order = values.flatMap((value, n) => value === null ? [] : [{ value, n }])
    .sort((a, b) => a.value - b.value);
  for (let first = 0, n = 1; n <= order.length; n++) {
    const here = order[n], before = order[n - 1];
    if (here && here.value - before.value
      < Math.max(intervals[here.n] ?? 0, intervals[before.n] ?? 0)) continue;
    const alike = order.slice(first, n);
    const mean = alike.reduce((sum, one) => sum + one.value / alike.length, 0);
    for (const one of alike) shown[one.n] = mean;
    first = n;
  }
  return shown;
}

/**
 * A path in a box of 100 x 100; at most some hundred points, since a cell is no wider.
 * @param {number[]} steps
 * @param {ArrayLike<number>} values
 * @param {number[]} range of steps
 * @param {number[]} scale of values
 */
function sparkline(steps, values, [left, right], [low, high]) {
  const stride = Math.ceil(values.length / 150);
  let path = "", pen = "M";
  for (let n = (values.length - 1) % stride; n < values.length; n += stride) {
    if (Number.isNaN(values[n])) {
      pen = "M";
      continue;
    }
    const x = 2 + 96 * (steps[n] - left) / (right - left);
    const y = 95 - 90 * (values[n] - low) / (high - low);
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (pen === "M") path += "h.01"; // a single point is seen too, by the ends of its line
    pen = "L";
  }
  return path;
}

/** Why there is no statistic to choose: none was logged, or what was logged has no numbers. */
function whyNone() {
  const silent = data.runs.filter((run) => run.sites[state.site]?.statistics);
  if (!silent.length)
    return "No run here has statistics of heads: log.stats_every in the config sets how often they "
      + "are logged.";
  const kinds = [...new Set(silent.map((run) => `'${run.kind}'`))].join(", ");
  return `Statistics of heads were logged, but none has a number: compute() of kind ${kinds} tells `
    + "its observer nothing. attend() does that by itself. Weights that a kind makes without it are "
    + "told by call.observer->weights(...), a statistic of its own by call.observer->report(...); a "
    + "kind without a map of weights has the latter alone (docs/own_kind.md).";
}

let statDrawn = 0;
async function drawStatistics() {
  const names = statistics();
  find("#statistics-body").hidden = !names.length;
  find("#statistics-missing").hidden = names.length > 0;
  find("#statistics-missing").textContent = names.length ? "" : whyNone();
  if (!names.length) return;
  fill("#stat", names.map((name) => [name, `${name}: ${named(data.variables.heads[name])}`]),
    state.stat);
  const meta = data.variables.heads[state.stat], current = ++statDrawn;
  find("#stat-formula").textContent = `${named(meta)}: ${meta.comment}`;
  const parts = await statisticOfRuns();
  if (current !== statDrawn) return; // another choice was made meanwhile
  const perLayer = parts.length > 0 && parts.every((part) => part.perLayer);
  const layers = union(shownRuns().map((run) => site(run).statistics?.layers ?? []));
  const heads = union(shownRuns().map((run) => site(run).statistics?.heads ?? []));
  statGrid.shape(layers, perLayer ? null : heads);
  statGrid.container.style.setProperty("--cell", layers.length > 8 ? "2.6rem" : "4.2rem");
  /** @type {Curves} */
  const curves = new Map();
  for (const cell of statGrid.cells.values()) {
    const { layer, head } = cell.dataset;
    curves.set(cell, parts.map((part) => part.curve(Number(layer), Number(head))));
  }
  const scale = limits([...curves.values()].flatMap(there));
  const single = parts.every(({ steps }) => steps.length < 2); // which is no curve
  if (state.view === "curves" && !single) drawCurves(parts, curves, scale, meta);
  else drawValues(parts, curves, scale, meta);
  statGrid.container.dataset.shown = `${state.stat} ${state.view} ${state.at} ${state.run}`;
}

/** @typedef {Map<HTMLElement, (Float32Array | null)[]>} Curves of every cell, one a run */

/**
 * Those that there are.
 * @template T
 * @param {(T | null)[]} list
 */
const there = (list) => list.flatMap((one) => one === null ? [] : [one]);

/** @param {{ layer?: string | number, head?: string | number }} of */
export const cellName = ({ layer, head }) =>
  head === undefined ? `layer ${layer}` : `layer ${layer}, head ${head}`;

/** @typedef {import("./data.js").Meta} Meta */

/** @type {(parts: Part[], curves: Curves, scale: number[], meta: Meta) => void} */
function drawCurves(parts, curves, scale, meta) {
  const range = limits(parts.map((part) => part.steps));
  for (const [cell, lines] of curves) {
    const box = makeSvg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none",
      "aria-hidden": "true" });
    let said = "absent";
    lines.forEach((values, n) => {
      if (!values) return;
      const { run, steps } = parts[n];
      const path = makeSvg("path", { d: sparkline(steps, values, range, scale),
        style: `stroke:${runColour(run)}` });
      if (dash(run)) path.setAttribute("stroke-dasharray", dash(run));
      box.append(path);
      if (run === state.run || said === "absent") said = format(lastOf(values)) + unit(meta);
    });
    show(cell, there(lines).length ? [box] : [], said);
  }
  const thinned = parts.find(({ of, steps }) => of > steps.length);
  find("#stat-scale").textContent = `Every cell: step ${range[0]} to ${range[1]} from left to `
    + `right, ${format(scale[0])} to ${format(scale[1])}${unit(meta)} from bottom to top. Hatched: `
    + "there is no such head, it was pruned, or it has no such number."
    + (thinned ? ` Drawn are ${thinned.steps.length} of ${thinned.of} logged steps.` : "");
}

/** @type {(parts: Part[], curves: Curves, scale: number[], meta: Meta) => void} */
function drawValues(parts, curves, scale, meta) {
  const part = parts.findIndex((one) => one.run === state.run);
  const row = part < 0 || state.at === null ? -1 : parts[part].steps.indexOf(state.at);
  const signed = scale[0] < 0 && scale[1] > 0, most = Math.max(-scale[0], scale[1]);
  const numbers = cellNumbers(most), [least, largest] = colourEnds(scale);
  for (const [cell, lines] of curves) {
    const value = row < 0 ? NaN : lines[part]?.[row] ?? NaN;
    const share = signed ? 0.5 + value / most / 2 : (value - least) / (largest - least);
    const known = !Number.isNaN(value);
    const text = make("span", { class: "value" }, known ? numbers.text(value) : "");
    show(cell, [text], known ? format(value) + unit(meta) : "absent",
      known ? shade(signed ? "diverging" : "sequential", share) : null);
  }
  find("#stat-scale").textContent = `${data.runs[state.run].label} at step ${state.at}. Colours: `
    + (signed ? `purple ${format(-most)}, white 0, orange ${format(most)}`
      : `blue ${format(least)} to yellow ${format(largest)}`)
    + `${unit(meta)}, the range over all steps and runs shown.${numbers.note} Hatched: no such `
    + "head or number.";
}

/**
 * How a grid writes numbers up to a size: so short that small cells hold them, all with the same
 * decimals, and in thousands or thousandths where needed, which `note` then says.
 * @param {number} most
 */
export function cellNumbers(most) {
  const power = most > 0 && (most < 0.1 || most >= 1e4) ? 3 * Math.floor(Math.log10(most) / 3) : 0;
  const scaled = most / 10 ** power;
  const decimals = scaled >= 100 ? 0 : scaled >= 10 ? 1 : scaled >= 1 ? 2 : 3;
  /** @param {number} value */
  const text = (value) => (value / 10 ** power).toFixed(decimals)
    .replace(/^-(0\.?0*)$/, "$1").replace(/^(-?)0\./, "$1.");
  return { text, note: power ? ` Numbers are in units of 1e${power}.` : "" };
}

/**
 * Fills a cell.
 * @param {HTMLElement} cell
 * @param {Node[]} children
 * @param {string} said its text for those who do not see it
 * @param {ReturnType<typeof legible> | null} colours
 */
export function show(cell, children, said, colours = null) {
  cell.style.background = colours?.paper ?? "";
  cell.style.color = colours?.ink ?? "";
  cell.classList.toggle("absent", said === "absent");
  cell.replaceChildren(...children);
  cell.title = `${cellName(cell.dataset)}: ${said}`;
  cell.setAttribute("aria-label", cell.title);
}

/** @param {ArrayLike<number>} values */
export function lastOf(values) {
  for (let n = values.length - 1; n >= 0; n--) if (!Number.isNaN(values[n])) return values[n];
  return NaN;
}

function showStep() {
  const slider = find("#at", HTMLInputElement), steps = site().statistics?.steps ?? [];
  find("#at-label").hidden = state.view !== "values" || !steps.length;
  slider.max = String(Math.max(0, steps.length - 1));
  slider.value = String(state.at === null ? -1 : steps.indexOf(state.at));
  slider.setAttribute("aria-valuetext", `step ${state.at}`);
  find("#at-shown").textContent = String(state.at ?? "");
}

export function startGrid() {
  bind("stat");
  const radios = bindRadio("view"), slider = find("#at", HTMLInputElement);
  slider.addEventListener("input", () =>
    set({ at: site().statistics?.steps[Number(slider.value)] ?? null }));
  on(["run", "site", "stat", "view", "at", "hide"], () => { showStep(); drawStatistics(); });
  on(["layer", "head"], () => statGrid.mark());
  radios();
  showStep();
  drawStatistics();
}
