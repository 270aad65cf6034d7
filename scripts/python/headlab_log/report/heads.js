// What analyses found of each head: roles, importance, ablation, and a plane of heads.
import { css, onTheme, shade } from "./colours.js";
import { bind, fill } from "./controls.js";
import { onClick, plot } from "./curves.js";
import { data, format, named, unit } from "./data.js";
import { find, make } from "./elements.js";
import { cellNumbers, colourEnds, HeadGrid, limits, show, toldApart } from "./grid.js";
import { among, indexOf, on, set, site, state } from "./state.js";

/**
 * @typedef {import("./data.js").Analysis} Analysis
 */

const roleGrid = new HeadGrid(find("#role-grid"), "roles of every head");

// Two letters a role, told apart within the report.
function badges() {
  const names = [...new Set(data.runs.flatMap((run) =>
    Object.values(run.sites).flatMap((of) => Object.keys(of.analysis?.roles ?? {}))))];
  /** @type {Map<string, string>} */
  const taken = new Map();
  for (const name of names) {
    const letters = [...name.slice(1)].map((c) => name[0] + c);
    const free = letters.find((two) => ![...taken.values()].includes(two)) ?? name;
    taken.set(name, free[0].toUpperCase() + free.slice(1));
  }
  return taken;
}
const badgeOf = badges();

/** @param {string} role */
const badge = (role) => make("span", { class: "badge" }, badgeOf.get(role) ?? role);

/** @param {Analysis} analysis */
function valueNames(analysis) {
  const first = ["importance", "importance_global", "loss_delta"];
  /** @param {string} name */
  const rank = (name) => {
    const found = first.findIndex((one) => name === one || name.startsWith(`${one} `));
    return found < 0 ? first.length : found;
  };
  return Object.keys(analysis.values).filter((name) => !/^(only_)?p_|_interval\b/.test(name))
    .sort((a, b) => rank(a) - rank(b));
}

function drawRoles() {
  const { analysis } = site(), path = data.runs[state.run].path;
  find("#roles-body").hidden = !analysis;
  const missing = find("#roles-missing");
  missing.hidden = Boolean(analysis?.analyzed && analysis?.ablated);
  missing.replaceChildren(...advice(analysis, path));
  if (!analysis) return;
  const names = valueNames(analysis);
  const name = among(state.value, names, names[0] ?? null);
  fill("#value", names.map((one) => [one, `${one}: ${named(data.variables.analysis[one])}`]),
    name);
  drawRoleGrid(analysis, name);
  drawRoleList(analysis);
  showRoles();
  drawPlane(analysis);
}

/**
 * What would measure more.
 * @param {Analysis | null | undefined} analysis
 * @param {string} path
 */
function advice(analysis, path) {
  const said = [];
  if (!analysis?.analyzed) said.push("Roles, importance and the plane of heads: ",
    make("code", {}, `${data.program} analyze ${path}`), ". ");
  if (!analysis?.ablated) said.push("What the loss says to the absence of each head: ",
    make("code", {}, `${data.program} ablate ${path}`), ".");
  return said;
}

/**
 * @param {Analysis} analysis
 * @param {string | null} name of the values
 */
function drawRoleGrid(analysis, name) {
  const { layers, heads, values, roles } = analysis;
  roleGrid.shape(layers, heads);
  const shown = values[name ?? ""] ?? [], deltas = /^(only_)?loss_delta/.test(name ?? "");
  const chances = deltas ? values[beside(name ?? "", "p_holm")] : undefined;
  const intervals = values[beside(name ?? "", "interval")];
  const coloured = toldApart(shown, intervals ?? []);
  const known = shown.flatMap((value) => value === null ? [] : [value]), scale = limits([known]);
  const [least, largest] = intervals ? scale : colourEnds(scale);
  const signed = scale[0] < 0 && scale[1] > 0, most = Math.max(-scale[0], scale[1]);
  const numbers = cellNumbers(known.length ? most : 0);
  for (const cell of roleGrid.cells.values()) {
    const n = indexOf(analysis, Number(cell.dataset.layer), Number(cell.dataset.head));
    const value = shown[n] ?? null, colour = coloured[n] ?? null;
    const sure = (chances?.[n] ?? 1) < significantBelow;
    const text = make("span", { class: "value" }, value === null ? "" : numbers.text(value)
      + (sure ? "*" : ""));
    const has = Object.keys(roles).filter((role) => roles[role][n] === 1);
    const held = make("span", { class: "badges" },
      ...has.map(badge));
    show(cell, [text, held], value === null && !has.length ? "absent"
      : [value === null ? null : `${name} ${format(value)}`, ...has].filter(Boolean).join(", "),
      colour === null ? null : signed ? shade("diverging", 0.5 + colour / most / 2)
        : shade("sequential", (colour - least) / (largest - least)));
  }
  const meta = data.variables.analysis[name ?? ""];
  const legend = data.variables.analysis[beside(name ?? "", "p_holm")]?.comment;
  find("#value-formula").textContent = meta ? `${named(meta)}: ${meta.comment}. `
    + sourceOf(analysis, name ?? "")
    + (chances && legend ? `${legend}. ` : "") + "Colours: "
    + (signed ? `purple ${format(-most)}, white 0, orange ${format(most)}`
      : `blue ${format(least)} to yellow ${format(largest)}`) + `${unit(meta)}. `
    + (intervals ? "Cells that differ by less than their 95 % interval share a colour." : "")
    + numbers.note : "";
}

// After Holm's correction, as `headlab ablate` has it.
const significantBelow = 0.05;

/**
 * On what a value was measured, as a sentence; nothing where that is not known.
 * @param {Analysis} analysis
 * @param {string} name
 */
const sourceOf = ({ measured }, name) => measured[name] ? `Measured on ${measured[name]}. ` : "";

/**
 * What stands beside a value in its file: "loss_delta_interval (zero)" beside "loss_delta (zero)",
 * and of a change of the loss its "p_holm (zero)" and "p_examples (zero)".
 * @param {string} name
 * @param {"interval" | "p_holm" | "p_examples"} what
 */
const beside = (name, what) =>
  name.replace(/^(only_)?(\w+)/, (_, only, value) =>
    (only ?? "") + (what === "interval" ? `${value}_interval` : what));

/**
 * How likely by chance a change is, and of how many examples that is. Files of versions that
 * resampled have neither.
 * @param {number | null} p
 * @param {number | null} examples
 */
function chanceText(p, examples) {
  const said = p === null ? "p -" : p < 1e-4 ? "p < 0.0001" : `p ${format(p)}`;
  return said + (examples === null ? "" : ` (${examples} examples)`);
}

/** @param {Analysis} analysis */
function drawRoleList({ roles, measured }) {
  /** @param {string} role */
  const count = (role) => roles[role].filter((flag) => flag === 1).length;
  /** @param {string} role */
  const item = (role) => {
    const meta = data.variables.roles[role], heads = count(role);
    return make("li", {}, badge(role), " ",
      make("b", {}, `${role}, ${heads} ${heads === 1 ? "head" : "heads"}`),
      `: ${meta.long_name} (${meta.comment})${measured[role] ? `, on ${measured[role]}` : ""}`);
  };
  const names = Object.keys(roles), held = names.filter(count);
  const vacant = names.filter((name) => !count(name));
  find("#role-list").replaceChildren(...held.map(item));
  find("#vacant").hidden = !vacant.length;
  find("#vacant").replaceChildren(
    make("summary", {}, `Roles that no head has: ${vacant.join(", ")}`),
    make("ul", { class: "roles" }, ...vacant.map(item)));
}

// What is known of the selected head, in words.
function showRoles() {
  const { analysis } = site();
  if (!analysis) return;
  const n = indexOf(analysis, state.layer, state.head);
  const has = Object.keys(analysis.roles).filter((role) => analysis.roles[role][n] === 1);
  const there = Object.values(analysis.values).some((values) => (values[n] ?? null) !== null);
  const said = [`Layer ${state.layer}, head ${state.head}: `
    + (has.join(", ") || (there ? "no role" : "absent"))];
  for (const [name, values] of Object.entries(analysis.values)) {
    const value = values[n];
    if (value === null || value === undefined) continue;
    const measured = analysis.measured[name], source = measured ? ` (${measured})` : "";
    if (/^importance( \[|$)/.test(name)) said.push(`${name}${source} ${format(value)}`);
    if (/^loss_delta( |$)/.test(name)) {
      const [p, examples] = /** @type {const} */ (["p_holm", "p_examples"]).map((what) =>
        analysis.values[beside(name, what)]?.[n] ?? null);
      said.push(`${name}${source} ${format(value)} nat, ${chanceText(p, examples)}`);
    }
  }
  find("#head-roles").textContent = said.join("; ");
}

// --- the plane of heads ----------------------------------------------------------------------

/** @typedef {{ layer: number, head: number, x: number, y: number }} Point */

/**
 * @param {Analysis} analysis
 * @returns {Point[]}
 */
function planePoints({ layers, heads, points }) {
  return layers.flatMap((layer, l) => heads.flatMap((head, h) => {
    const n = 2 * (l * heads.length + h), x = points?.[n] ?? null, y = points?.[n + 1] ?? null;
    return x === null || y === null ? [] : [{ layer, head, x, y }];
  }));
}

/** @param {Point} p */
const chosen = (p) => p.layer === state.layer && p.head === state.head;

/**
 * Where the label of each point stands so that none covers another; none where there is no room.
 * @param {Point[]} points
 * @param {number} width
 * @param {number} height
 */
function placeLabels(points, width, height) {
  const xs = limits([points.map((p) => p.x)]), ys = limits([points.map((p) => p.y)]);
  /** @param {Point} p */
  const centre = (p) => [(p.x - xs[0]) / (xs[1] - xs[0]) * width,
    (ys[1] - p.y) / (ys[1] - ys[0]) * height];
  const taken = points.map((p) => { // the points themselves
    const [x, y] = centre(p);
    return [x - 6, y - 6, x + 6, y + 6];
  });
  const sides = { "top center": [0, -14], "bottom center": [0, 14], "middle right": [21, 0],
    "middle left": [-21, 0] };
  const order = [...points.filter(chosen), ...points.filter((p) => !chosen(p))];
  /** @type {Map<Point, string>} */
  const placed = new Map();
  for (const p of order) {
    const [x, y] = centre(p);
    for (const [side, [dx, dy]] of Object.entries(sides)) {
      const box = [x + dx - 14, y + dy - 7, x + dx + 14, y + dy + 7];
      const free = box[0] > -25 && box[2] < width + 25 && taken.every((other) =>
        box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
      if (!free) continue;
      taken.push(box);
      placed.set(p, side);
      break;
    }
  }
  return placed;
}

async function drawPlane(analysis = site().analysis) {
  const element = find("#plane-plot");
  element.hidden = !analysis?.points;
  if (!analysis) return;
  if (!analysis.points || !analysis.plane) {
    find("#plane-note").textContent = `This analysis has no map of heads: ${data.program} analyze `
      + "without --importance makes it, and finds roles.";
    return;
  }
  const { comment, share, unit, measured } = analysis.plane, points = planePoints(analysis);
  find("#plane-note").textContent = `${comment}. ${measured ? `Measured on ${measured}. ` : ""}`
    + `${share === null ? "" : `The plane holds ${Math.round(share * 100)} % of the spread. `}`
    + "Labels are layer.head; where "
    + "there is no room for one, the pointer shows it. A click selects.";
  const width = element.clientWidth - 150, height = element.clientHeight - 90;
  const placed = placeLabels(points, width, height);
  const layers = analysis.layers, most = Math.max(...layers), least = Math.min(...layers);
  const every = Math.ceil(layers.length / 12);
  element.setAttribute("aria-label", "heads in a plane, near ones attend alike; coloured by layer");
  await plot(element, [{
    x: points.map((p) => p.x), y: points.map((p) => p.y), mode: "markers+text", type: "scatter",
    customdata: points.map((p) => [p.layer, p.head]),
    text: points.map((p) => placed.has(p) ? `${p.layer}.${p.head}` : ""),
    textposition: points.map((p) => placed.get(p) ?? "top center"),
    textfont: { size: 11 }, cliponaxis: false,
    hovertemplate: "layer %{customdata[0]}, head %{customdata[1]}<extra></extra>",
    marker: {
      size: points.map((p) => chosen(p) ? 13 : 9), color: points.map((p) => p.layer),
      colorscale: "Viridis", cmin: least, cmax: most > least ? most : least + 1,
      showscale: true, colorbar: { title: { text: "layer", side: "right" }, thickness: 10,
        tickmode: "array", tickvals: layers.filter((_, n) => n % every === 0) },
      line: { width: points.map((p) => chosen(p) ? 3 : 0.5),
        color: points.map((p) => css(chosen(p) ? "--mark" : "--ink")) },
    },
  }], {
    xaxis: { title: `first axis of the plane [${unit}]`, zeroline: false },
    yaxis: { title: `second axis [${unit}]`, zeroline: false },
  });
  if (element.dataset.listens) return;
  element.dataset.listens = "yes";
  onClick(element, ({ points: [{ customdata: [layer, head] }] }) => set({ layer, head }));
}

export function startRoles() {
  bind("value");
  on(["run", "site", "value"], drawRoles);
  on(["layer", "head"], () => {
    if (!site().analysis) return;
    roleGrid.mark();
    showRoles();
    drawPlane();
  });
  onTheme.push(drawPlane);
  drawRoles();
}
