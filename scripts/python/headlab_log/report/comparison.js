// The comparison that a page is of: its tables, the curves of its arms, the differences to the baseline.
import { css, lineColour, lineDash, onTheme, parse, swatch } from "./colours.js";
import { bind, fill } from "./controls.js";
import { escape, plot, plotColour, plotDash } from "./curves.js";
import { data } from "./data.js";
import { find, make } from "./elements.js";
import { measures, on, set, state } from "./state.js";

const comparedTask = () => /** @type {import("./data.js").Comparison} */ (data.comparison)
  .tasks[state.task];

// --- tables --------------------------------------------------------------------------------------

/**
 * Shows a run of the page, and what was logged of it.
 * @param {number} run
 */
function showRun(run) {
  set({ run });
  const section = find("#losses").hidden ? find("#statistics") : find("#losses");
  section.scrollIntoView();
  section.tabIndex = -1;
  section.focus({ preventScroll: true });
}

/**
 * @param {number} run
 * @param {string} text
 */
function linkTo(run, text) {
  const link = make("a", { href: `#run=${run}`, "data-run": run }, text);
  link.addEventListener("click", (event) => {
    event.preventDefault(); // the address holds what else is selected
    showRun(run);
  });
  return link;
}

/**
 * The name of an arm: in the colour of its curve, leading to its runs.
 * @param {string} name
 */
function armCell(name) {
  const place = comparedTask().arms.findIndex((arm) => arm.name === name);
  if (place < 0) return make("td", {}, name);
  const { runs, reason } = comparedTask().arms[place];
  const seeds = runs.length < 2 ? [] : runs.flatMap(([run, seed]) => [" ", linkTo(run, `s${seed}`)]);
  return make("td", { title: reason || null, "data-arm": name },
    swatch(lineColour(place), lineDash(place)), runs.length ? linkTo(runs[0][0], name) : name, ...seeds);
}

/** @param {import("./data.js").Block} block */
function blockElement(block) {
  if (block.items) return make("ul", { class: "note" }, ...block.items.map((item) => make("li", {}, item)));
  if (!block.head) return make("p", { class: "note" }, block.text ?? "");
  const head = block.head.map((name, column) =>
    make("th", { scope: "col", class: column ? "number" : null }, name));
  const rows = (block.rows ?? []).map((cells) => make("tr", {}, ...cells.map((cell, column) =>
    column ? make("td", { class: cell.startsWith("- (") ? "why" : "number" }, cell) : armCell(cell))));
  return make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "table of the arms" },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
}

function drawBlocks() {
  const { blocks } = comparedTask();
  const last = blocks.map((block) => block.head !== undefined).lastIndexOf(true) + 1;
  find("#compared-tables").replaceChildren(...blocks.slice(0, last).map(blockElement));
  find("#compared-notes").replaceChildren(...blocks.slice(last).map(blockElement));
}

// --- curves --------------------------------------------------------------------------------------

/** @param {number} arm */
function bandColour(arm) {
  return `rgba(${parse(css(`--run${arm % 7}`)).join(",")},0.18)`;
}

async function drawComparedCurves() {
  const { arms, references, banded, range } = comparedTask(), drawn = arms.filter((arm) => arm.steps.length);
  const baseline = data.comparison?.baseline, traces = [];
  for (const [n, arm] of arms.entries()) {
    if (!arm.steps.length) continue;
    const known = arm.steps.map((_, at) => at).filter((at) => arm.low[at] !== null && arm.high[at] !== null);
    if (known.length && banded.includes(arm.name)) {
      const back = [...known].reverse();
      traces.push({ x: [...known, ...back].map((at) => arm.steps[at]), hoverinfo: "skip",
        y: [...known.map((at) => arm.high[at]), ...back.map((at) => arm.low[at])],
        mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: bandColour(n) });
    }
    traces.push({ x: arm.steps, y: arm.val_loss, mode: arm.steps.length > 60 ? "lines" : "lines+markers",
      name: escape(arm.name), marker: { size: 4 },
      line: { color: plotColour(n), dash: plotDash(n), width: arm.name === baseline ? 3 : 1.6 },
      hovertemplate: "%{fullData.name}<br>step %{x}: %{y:.4f}<extra></extra>" });
  }
  const lines = Object.entries(references);
  await plot(find("#compared-curves"), traces, {
    xaxis: { title: "step" },
    yaxis: { title: "validation loss [nat]", ...(range ? { range } : {}) },
    shapes: lines.map(([, y]) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y,
      line: { color: css("--soft"), width: 1, dash: "dot" } })),
    annotations: lines.map(([name, y]) => ({ xref: "paper", x: 1, y, text: escape(name), showarrow: false,
      xanchor: "right", yanchor: "bottom", font: { color: css("--soft"), size: 11 } })),
  });
  find("#compared-curves-note").textContent = drawn.length > banded.length
    ? `The band is the 95 % interval of ${baseline}; of ${drawn.length} arms the others would hide each other.`
    : "Bands are 95 % intervals over the seeds.";
}

// --- differences ---------------------------------------------------------------------------------

/**
 * Plots a point an arm; those that are reported are filled and have a star. Arms without a point are told of.
 * @param {{ arm: import("./data.js").Arm, n: number, x: number, low: number, high: number, reported: boolean,
 *           said: string }[]} shown
 * @param {import("./curves.js").Axis} xaxis
 * @param {(arm: import("./data.js").Arm) => string} words of an arm without a point; "": none
 */
async function drawPoints(shown, xaxis, words) {
  const { arms } = comparedTask();
  const points = [true, false].map((reported) => {
    const some = shown.filter((one) => one.reported === reported);
    return {
      x: some.map(({ x }) => x), y: some.map(({ arm }) => escape(arm.name)), mode: "markers",
      error_x: { type: "data", symmetric: false, color: css("--soft"), thickness: 1.4, width: 3,
        array: some.map(({ x, high }) => high - x), arrayminus: some.map(({ x, low }) => x - low) },
      marker: { size: 9, symbol: reported ? "circle" : "circle-open", color: some.map(({ n }) => plotColour(n)),
        line: { width: 2, color: some.map(({ n }) => plotColour(n)) } },
      customdata: some.map(({ said }) => escape(said)), cliponaxis: false,
      hovertemplate: "%{y}: %{customdata}<extra></extra>",
    };
  });
  const starred = shown.filter(({ reported }) => reported);
  const stars = { x: starred.map(({ high }) => high), y: starred.map(({ arm }) => escape(arm.name)), mode: "text",
    text: starred.map(() => "*"), textposition: "middle right", textfont: { size: 16 }, hoverinfo: "skip",
    cliponaxis: false };
  const element = find("#compared-differences");
  element.style.height = `${100 + 24 * arms.length}px`;
  const names = arms.map((arm) => escape(arm.name)).reverse(), there = shown.map(({ arm }) => arm);
  await plot(element, [...points, stars], {
    xaxis,
    yaxis: { title: "", type: "category", categoryorder: "array", categoryarray: names,
      range: [-0.6, names.length - 0.4], tickmode: "array", tickvals: names },
    annotations: arms.filter((arm) => !there.includes(arm) && words(arm)).map((arm) => ({ xref: "paper", x: 0.02,
      xanchor: "left", y: escape(arm.name), text: words(arm), showarrow: false,
      font: { color: css("--soft"), size: 11 } })),
  });
}

/** @param {import("./data.js").Arm[]} arms that have no point */
const reasonsOf = (arms) => arms.filter((arm) => arm.reason).map((arm) => ` ${arm.name}: ${arm.reason}.`).join("");

async function drawSolved() {
  const { arms, solved } = comparedTask(), of = data.comparison?.seeds.length ?? 0;
  const shown = arms.flatMap((arm, n) => {
    const found = solved?.[n];
    if (!found) return [];
    const [x, p, reported] = found;
    const test = p === null ? "" : `, p after Holm ${p < 0.001 ? "< .001" : p.toFixed(3)}`;
    return [{ arm, n, x, low: x, high: x, reported, said: `${x} of ${of}${test}` }];
  });
  await drawPoints(shown, { title: `seeds that solved it, of ${of}`, range: [-0.3, of + 0.5],
    dtick: Math.max(1, Math.floor(of / 5)) }, (arm) => arm.reason ? "no statistics" : "not known");
  return `Seeds that solved the task. Filled with a star: reported, by Fisher's exact test against `
    + `${data.comparison?.baseline} after Holm's correction.`
    + reasonsOf(arms.filter((arm) => !shown.some((one) => one.arm === arm)));
}

async function drawMeans() {
  const { arms, differences } = comparedTask(), of = differences[state.metric] ?? [];
  const baseline = data.comparison?.baseline ?? "", unit = state.metric.endsWith("loss") ? " [nat]" : "";
  /** @param {number | null} value */
  const signed = (value) => value === null ? "-" : `${value < 0 ? "" : "+"}${value.toFixed(4)}`;
  const shown = arms.flatMap((arm, n) => {
    const found = of[n];
    if (!found) return [];
    const [x, low, high, reported] = found;
    return [{ arm, n, x, low: low ?? x, high: high ?? x, reported,
      said: `${signed(x)} [${signed(low)}, ${signed(high)}]${reported ? ", more than chance" : ""}` }];
  });
  await drawPoints(shown, { title: `difference to ${baseline}${unit}` },
    (arm) => arm.name === baseline ? "" : arm.reason ? "no statistics" : "no difference");
  return `Less the ${state.metric.replace("val_", "validation ")} of ${baseline}, seed by seed: mean and 95 % interval. `
    + "Filled with a star: reported, more than chance."
    + reasonsOf(arms.filter((arm) => arm.name !== baseline && !shown.some((one) => one.arm === arm)));
}

async function drawDifferences() {
  find("#compared-differences-title").textContent =
    state.metric === "solved" ? "Seeds that solved it" : "Differences to the baseline";
  find("#compared-differences-note").textContent = await (state.metric === "solved" ? drawSolved() : drawMeans());
  find("#comparison").dataset.shown = `${state.task} ${state.metric}`;
}

function drawComparison() {
  const comparison = /** @type {import("./data.js").Comparison} */ (data.comparison);
  find("#compared-first").replaceChildren(...comparison.first.map((text) => make("p", {}, text)));
  find("#task-label").hidden = comparison.tasks.length < 2;
  fill("#task", comparison.tasks.map((task, n) => [n, task.name]), state.task);
  const metrics = measures(state.task);
  find("#metric-label").hidden = metrics.length < 2;
  fill("#metric", metrics.map((name) => [name, name === "solved" ? "seeds that solved it" : name]), state.metric);
  drawBlocks();
  drawComparedCurves();
  drawDifferences();
}

export function startComparison() {
  find("#comparison").hidden = !data.comparison;
  if (!data.comparison) return;
  bind("task", true);
  bind("metric");
  on(["task"], drawComparison);
  on(["metric"], drawDifferences);
  onTheme.push(drawComparedCurves, drawDifferences);
  drawComparison();
}
