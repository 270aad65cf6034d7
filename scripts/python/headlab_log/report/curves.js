// Curves by Plotly: training, the selected head, heads in the plane, pruning.
import { css, lineOf, onTheme } from "./colours.js";
import { bind, fill } from "./controls.js";
import { array, data, format, inflate, named, pruningNames, pruningVariables, scalarNames, unit,
  xNames } from "./data.js";
import { find, make } from "./elements.js";
import { lastOf, statisticOfRuns } from "./grid.js";
import { on, set, shownRuns, site, state, statistics, visible } from "./state.js";

/** @type {Promise<Window["Plotly"]> | null} */
let loaded = null;
// Plotly itself, unpacked when first needed.
function plotly() {
  loaded ??= inflate(find("#plotly").textContent ?? "").then((bytes) => {
    document.head.append(make("script", {}, new TextDecoder().decode(bytes)));
    find("#plotly").remove();
    return window.Plotly;
  });
  return loaded;
}

/** @typedef {{ title: string, [setting: string]: unknown }} Axis */

/**
 * Draws into an element, in the colours of the page.
 * @param {HTMLElement} element
 * @param {object[]} traces
 * @param {{ xaxis: Axis, yaxis: Axis, [setting: string]: unknown }} layout
 */
export async function plot(element, traces, layout) {
  const Plotly = await plotly();
  const ink = css("--ink"), line = css("--line"), hover = matchMedia("(hover: hover)").matches;
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  /** @param {Axis} axis */
  const titled = ({ title, ...given }) => ({ ...axis, ...given, title: { text: twoLines(title) } });
  const { xaxis, yaxis, ...rest } = layout;
  await Plotly.react(element, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
    margin: { l: 52, r: 12, t: 12, b: 40 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: css("--raised"), bordercolor: line, font: { color: ink } },
    dragmode: hover ? "zoom" : false, // a finger scrolls the page
    xaxis: titled(xaxis), yaxis: titled(yaxis), ...rest,
  }, { responsive: true, displaylogo: false, displayModeBar: hover ? "hover" : false,
    showSendToCloud: false, toImageButtonOptions: { format: "svg" },
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
}

/** @typedef {{ points: { customdata: number[] }[] }} Click */

/**
 * Calls `clicked` when the reader clicks at a point of a plot.
 * @param {HTMLElement} element
 * @param {(click: Click) => void} clicked
 */
export function onClick(element, clicked) {
  const plotted = /** @type {HTMLElement & { on: Function }} */ (element);
  plotted.on("plotly_click", clicked);
}

/**
 * The text of an axis, broken near its middle where it would be longer than the plot.
 * @param {string} text
 */
function twoLines(text) {
  if (text.length < 36) return escape(text);
  const at = text.indexOf(" ", text.length / 2);
  return at < 0 ? escape(text) : `${escape(text.slice(0, at))}<br>${escape(text.slice(at + 1))}`;
}

/**
 * Plotly reads a little markup in its texts.
 * @param {string} text
 */
export function escape(text) {
  return text.replace(/[&<>%]/g, (c) => `&#${c.charCodeAt(0)};`);
}

/** @param {number} n of the line */
export const plotDash = (n) => ["solid", "dash", "dot", "dashdot"][Math.floor(n / 7) % 4];
/** @param {number} n of the line */
export const plotColour = (n) => css(`--run${n % 7}`);

// --- training ------------------------------------------------------------------------------------

/**
 * Whether a part's losses were measured on other examples than those that the curve is of.
 * @param {string} kind
 */
const otherExamples = (kind) => kind !== "eval" && kind.startsWith("eval");

/** Of what examples points and diamonds are. */
function measuresSaid() {
  /** @type {(wanted: (kind: string) => boolean) => string} */
  const said = (wanted) => [...new Set(data.runs.flatMap((run) => Object.entries(run.curves)
    .flatMap(([kind, part]) => wanted(kind) ? [part.measured] : [])))].join("; or ");
  const points = said((kind) => kind === "eval"), diamonds = said(otherExamples);
  return (points ? `Validation is over: ${points}. ` : "")
    + (diamonds ? `A diamond stands apart: it is over other examples, ${diamonds}, and is not to be `
      + "compared with the curve. " : "");
}

async function scalarTraces() {
  const wanted = state.scalar === "loss" ? ["train_loss", "val_loss"] : [state.scalar];
  const traces = [];
  for (const run of shownRuns()) {
    for (const [kind, part] of Object.entries(data.runs[run].curves)) {
      const values = await array(part.id);
      /** @param {string} name */
      const column = (name) => {
        const at = part.names.indexOf(name);
        return at < 0 ? null : Array.from(values.subarray(at * part.rows, (at + 1) * part.rows));
      };
      for (const name of wanted.filter((one) => part.names.includes(one))) {
        const thin = name === "train_loss" && wanted.length > 1;
        const label = data.runs[run].label, x = column(state.x) ?? column("step");
        traces.push({
          x, y: column(name), type: "scatter",
          mode: (thin && part.rows > 1) || part.rows > 60 ? "lines" : "lines+markers",
          name: escape([label, data.variables.scalars[name].long_name, part.measured]
            .filter(Boolean).join(", ")),
          opacity: thin ? 0.6 : 1,
          line: { color: plotColour(lineOf(run)), width: thin ? 1 : 2, dash: plotDash(lineOf(run)) },
          marker: otherExamples(kind) ? { size: 9, symbol: "diamond" } : { size: 5 }, hovertemplate: `%{fullData.name}<br>%{x}: %{y:.4g}<extra></extra>`,
        });
      }
    }
  }
  return traces;
}

async function drawScalars() {
  const names = scalarNames(), several = state.scalar === "loss";
  find("#losses").hidden = names.length === 1;
  if (names.length === 1) return;
  fill("#scalar", names.map((name) => [name, name === "loss"
    ? "loss: training and validation" : `${name}: ${named(data.variables.scalars[name])}`]),
    state.scalar);
  fill("#x", Object.entries(xNames), state.x);
  find("#log", HTMLInputElement).checked = state.log === 1;
  const meta = data.variables.scalars[several ? "train_loss" : state.scalar];
  const title = several ? `loss [${meta?.unit ?? "nat"}]` : named(meta);
  const every = Math.max(...data.runs.flatMap((run) =>
    Object.values(run.curves).map((part) => Math.ceil(part.of / part.rows))));
  find("#scalar-note").textContent = (several
    ? "Thin: training, each point one batch. Thick, with points: validation. " + measuresSaid()
    : `${meta.comment}. `)
    + (every > 1 ? `Of long curves every ${every}th row is drawn.` : "");
  find("#scalar-plot").setAttribute("aria-label", `${title} over ${xNames[state.x]}`);
  await plot(find("#scalar-plot"), await scalarTraces(), {
    xaxis: { title: xNames[state.x] },
    yaxis: { title, type: state.log ? "log" : "linear" },
  });
}

// --- the selected head -----------------------------------------------------------------------

let curveDrawn = 0;
async function drawHead() {
  if (!statistics().length) return;
  const current = ++curveDrawn, meta = data.variables.heads[state.stat];
  const parts = await statisticOfRuns();
  if (current !== curveDrawn) return;
  const perLayer = parts.length > 0 && parts.every((part) => part.perLayer);
  const where = perLayer ? `Layer ${state.layer}` : `Layer ${state.layer}, head ${state.head}`;
  find("#curve-title").textContent = `${where}: ${meta.long_name}`;
  const mates = [], lines = [], said = [];
  for (const { run, steps, curve } of parts) {
    const label = data.runs[run].label, own = curve(state.layer, state.head);
    if (run === state.run && !perLayer) {
      for (const head of site(run).statistics?.heads ?? []) {
        if (head === state.head) continue;
        const values = curve(state.layer, head);
        if (values) mates.push({ x: steps, y: values, name: `head ${head}`,
          mode: steps.length > 1 ? "lines" : "markers",
          line: { color: css("--line"), width: 1 }, marker: { color: css("--line"), size: 4 },
          hovertemplate: "%{fullData.name}<extra></extra>" });
      }
    }
    if (!own) continue;
    lines.push({ x: steps, y: own, mode: steps.length > 60 ? "lines" : "lines+markers",
      line: { color: plotColour(lineOf(run)), width: run === state.run ? 3 : 1.6, dash: plotDash(lineOf(run)) },
      marker: { size: 4 },
      hovertemplate: `${escape(label)}<br>step %{x}: %{y:.4g}<extra></extra>` });
    if (run === state.run) said.push(`${format(lastOf(own))}${unit(meta)}`, steps.at(-1));
  }
  const shown = find("#curve-value");
  shown.textContent = said.length ? `Last value: ${said[0]}, at step ${said[1]}`
    : `${data.runs[state.run].label} has no such head, or no such number of it.`;
  shown.dataset.shown = `${state.run} ${state.stat} ${state.layer} ${state.head}`;
  find("#curve-plot").setAttribute("aria-label", `${where}: ${named(meta)} over training steps`);
  await plot(find("#curve-plot"), [...mates, ...lines], {
    xaxis: { title: "step" }, yaxis: { title: named(meta) },
  });
}

// --- pruning -------------------------------------------------------------------------------------

async function drawPruning() {
  const runs = data.runs.flatMap(({ pruning }, run) => pruning ? [{ ...pruning, run }] : []);
  find("#pruning").hidden = !runs.length;
  if (!runs.length) return;
  const names = pruningVariables(), [ys, xs] = pruningNames();
  fill("#prune-y", ys.map((name) => [name, named(names[name])]), state.prune_y);
  fill("#prune-x", xs.map((name) => [name, named(names[name])]), state.prune_x);
  /** @param {number | null | undefined} value */
  const count = (value) => value?.toLocaleString("en") ?? "-";
  const traces = runs.filter(({ run }) => visible(run)).map(({ values, removed, run }) => ({
    x: values[state.prune_x], y: values[state.prune_y], mode: "lines+markers",
    marker: { size: 7 },
    line: { color: plotColour(lineOf(run)), dash: plotDash(lineOf(run)) },
    text: values.kept.map((kept, n) => [escape(data.runs[run].label), `${kept} heads left`,
      `${count(values.parameters?.[n])} parameters`, `${count(values.flops?.[n])} operations a token`,
      removed[n]?.length ? `removed: ${wrap(removed[n])}` : ""].join("<br>")),
    hovertemplate: "%{y:.4g}<br>%{text}<extra></extra>",
  }));
  const uncut = uncutTraces(runs);
  find("#prune-note").textContent = "One point a round of pruning"
    + (runs.length > 1 ? ", one line a run" : "") + `; ${names[state.prune_y]?.comment ?? ""}. `
    + "Removed heads are named layer.head."
    + (uncut.length ? " Open diamonds: the whole model after as many updates of tuning." : "");
  await plot(find("#prune-plot"), [...traces, ...uncut], {
    xaxis: { title: named(names[state.prune_x]) },
    yaxis: { title: named(names[state.prune_y]) },
  });
}

/**
 * What tuning alone does: the uncut model beside each round.
 * @param {(import("./data.js").Pruning & { run: number })[]} runs
 */
function uncutTraces(runs) {
  return runs.filter(({ run, values }) => visible(run) && values[`uncut_${state.prune_y}`])
    .map(({ values, run }) => ({
      x: values[state.prune_x], y: values[`uncut_${state.prune_y}`], mode: "lines+markers",
      marker: { size: 7, symbol: "diamond-open" },
      line: { color: plotColour(lineOf(run)), dash: "dot", width: 1 },
      text: values.kept.map(() => `${escape(data.runs[run].label)}<br>uncut, tuned as long`),
      hovertemplate: "%{y:.4g}<br>%{text}<extra></extra>",
    }));
}

/** @param {string[]} names */
function wrap(names) { // a hover text has no line breaks of its own
  const lines = [];
  for (let n = 0; n < names.length; n += 8) lines.push(names.slice(n, n + 8).join(" "));
  return lines.join("<br>");
}

export function startCurves() {
  bind("scalar");
  bind("x");
  bind("prune-x");
  bind("prune-y");
  const logarithmic = find("#log", HTMLInputElement);
  logarithmic.addEventListener("change", () => set({ log: logarithmic.checked ? 1 : 0 }));
  on(["scalar", "x", "log", "hide", "run"], drawScalars);
  on(["run", "site", "stat", "layer", "head", "hide"], drawHead);
  on(["prune_x", "prune_y", "hide", "run"], drawPruning);
  onTheme.push(drawScalars, drawHead, drawPruning);
  drawScalars();
  drawHead();
  drawPruning();
}
