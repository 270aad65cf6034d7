// Head, bar and settings of the page; starts every part.
import { dash, onTheme, runColour, swatch, themeChanged } from "./colours.js";
import { startComparison } from "./comparison.js";
import { bind, fill } from "./controls.js";
import { startCurves } from "./curves.js";
import { data } from "./data.js";
import { around, childrenOf, find, findAll, make } from "./elements.js";
import { startGrid } from "./grid.js";
import { startRoles } from "./heads.js";
import { axis, on, set, startState, state, visible } from "./state.js";
import { startViewer } from "./viewer.js";

/** @type {(value: number | null, text?: (value: number) => string) => string} */
const known = (value, text = String) => value === null ? "" : text(value);

/** @param {number} run */
const swatchOf = (run) => swatch(runColour(run), dash(run));

/**
 * @param {string[][]} head name and class of every column
 * @param {HTMLTableCellElement[][]} rows
 * @param {HTMLTableCellElement[][]} foot
 */
function table(head, rows, foot = []) {
  const heads = head.map(([name, kind]) => make("th", { scope: "col", class: kind }, name));
  /** @type {(cells: HTMLTableCellElement[][]) => HTMLElement[]} */
  const lines = (cells) => cells.map((row) => make("tr", {}, ...row));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...lines(rows)), ...(foot.length ? [make("tfoot", {}, ...lines(foot))] : []));
}

// What validation losses were measured on; what differs in that has a column of its own.
const measured = [...new Set(data.runs.flatMap(({ heading: { val_losses, references } }) =>
  [...Object.keys(val_losses), ...(references ? [references.measured] : [])]))];
/** @param {string} words */
const lossColumn = (words) => `validation loss [nat], ${words}`;
const columns = [
  ["run", ""], ["kind", ""], ["seed", "number"], ["state", ""], ["step", "number"],
  ["training loss [nat]", "number"],
  ...measured.map((words) => [lossColumn(words), "number"]),
  ["parameters", "number"], ["time [s]", "number"],
];

/**
 * How many parameters are trained, and of how many where not all are.
 * @param {import("./data.js").Parameters} parameters
 */
function counted({ trained, total }) {
  const said = known(trained, (count) => count.toLocaleString("en"));
  return total === null || total === trained ? said
    : `${said} trained of ${total.toLocaleString("en")}`;
}

/** What losses are to be held against: rows below those of the runs, once where runs share them. */
function referenceRows() {
  const sets = new Map(data.runs.flatMap(({ label, heading: { references } }) =>
    references ? [/** @type {const} */ ([JSON.stringify(references), { label, references }])] : []));
  return [...sets.values()].flatMap(({ label, references }) => references.rows.map((one) => {
    const others = Object.entries(one.values).map(([metric, value]) =>
      `, ${metric} ${known(value, (number) => number.toFixed(4))}`);
    const name = one.name + (sets.size > 1 ? ` of ${label}'s data` : "") + others.join("");
    return columns.map(([column, kind]) => make("td", { class: kind,
      title: column === "run" ? one.how : null, "data-label": column === "run" ? null : column },
      column === "run" ? name
        : column === lossColumn(references.measured) ? known(one.loss, (loss) => loss.toFixed(4)) : ""));
  }));
}

function drawHeading() {
  const rows = data.runs.map((run, n) => {
    const { heading: h } = run;
    const texts = [run.label, run.kind, known(run.seed), run.state,
      known(h.step, (step) => h.steps && h.steps !== step ? `${step} of ${h.steps}` : `${step}`),
      known(h.train_loss, (loss) => loss.toFixed(4)),
      ...measured.map((words) => known(h.val_losses[words] ?? null, (loss) => loss.toFixed(4))),
      counted(h.parameters),
      known(h.seconds, (seconds) => seconds.toFixed(0))];
    return texts.map((text, column) => make("td", { class: columns[column][1],
      "data-label": column ? columns[column][0] : null, title: column ? null : run.path },
      ...(column ? [text] : [swatchOf(n), text])));
  });
  find("#runs").replaceChildren(...(rows.length ? [table(columns, rows, referenceRows())] : []));
  find("#notes").replaceChildren(...data.runs.flatMap((run) => run.notes)
    .concat(data.left_out).map((text) => make("li", {}, text)));
  find("#made").textContent = `Made by headlab from ${data.runs.length} `
    + `${data.runs.length === 1 ? "run" : "runs"} on ${data.made}.`;
}

// Buttons that hide and show runs, in the colours of their curves.
function drawLegends() {
  if (data.runs.length === 1) return;
  for (const legend of findAll("[data-legend]")) {
    legend.replaceChildren(...data.runs.map((run, n) => {
      const button = make("button", { type: "button", "aria-pressed": visible(n) }, swatchOf(n),
        run.label);
      button.addEventListener("click", () => {
        const hidden = new Set(state.hide.split(",").filter(Boolean));
        if (!hidden.delete(String(n))) hidden.add(String(n));
        set({ hide: [...hidden].join(",") });
      });
      return button;
    }));
  }
}

function markLegends() {
  for (const legend of findAll("[data-legend]")) {
    childrenOf(legend).forEach((button, n) =>
      button.setAttribute("aria-pressed", String(visible(n))));
  }
}

function drawBar() {
  const sites = Object.keys(data.runs[state.run].sites);
  find("#run-label").hidden = data.runs.length === 1;
  find("#site-label").hidden = sites.length < 2;
  fill("#run", data.runs.map((run, n) => [n, run.label]), state.run);
  fill("#site", sites.map((name) => [name, name]), state.site);
  fill("#layer", axis("layers").map((layer) => [layer, layer]), state.layer);
  fill("#head", axis("heads").map((head) => [head, head]), state.head);
}

function drawSettings() {
  const heads = [["setting", ""], ...data.runs.map((run) => [run.label, ""])];
  const rows = data.differences.map((row) => row.map((text, column) => make("td",
    { "data-label": column ? data.runs[column - 1].label : null }, text ?? "—")));
  if (data.runs.length > 1) {
    find("#differences").append(make("h3", {}, "What differs"), rows.length
      ? make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "what differs" },
        table(heads, rows)) : make("p", {}, "All settings are the same."));
  }
  /** @type {(title: string, text: string) => HTMLElement} */
  const whole = (title, text) => make("details", {}, make("summary", {}, title),
    make("pre", { tabindex: 0 }, text));
  const all = data.runs.flatMap((run) => [whole(`config of ${run.label}`, run.config),
    whole(`manifest of ${run.label}`, run.manifest)]);
  const folded = make("details", {}, make("summary", {}, "configs and manifests, whole"),
    make("div", { class: "inset" }, ...all));
  find("#configs").replaceChildren(...(data.runs.length === 1 ? all : [folded]));
}

function startTheme() {
  const button = find("#theme"), dark = matchMedia("(prefers-color-scheme: dark)");
  const shown = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = shown() === "dark" ? "Light" : "Dark"; };
  button.setAttribute("aria-label", "switch between light and dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = shown() === "dark" ? "light" : "dark";
    themeChanged();
  });
  onTheme.push(label);
  label();
}

// Links to the sections that there are. The hash holds the state, so they must not write it.
function startLinks() {
  for (const link of childrenOf(find("#sections"))) {
    link.hidden = find(link.getAttribute("href") ?? "").hidden;
  }
  find("#sections").addEventListener("click", (event) => {
    const link = around(event, "a");
    if (!link) return;
    event.preventDefault();
    const section = find(link.getAttribute("href") ?? "");
    section.scrollIntoView();
    section.tabIndex = -1;
    section.focus({ preventScroll: true });
  });
}

// Loads the page anew when the server has a newer one; the hash keeps what is selected.
async function followServer() {
  try {
    const version = await (await fetch("/version")).text();
    if (version !== data.version) location.reload();
  } catch {
    find("#made").textContent += " The server has gone; this page stays as it is.";
    return;
  }
  setTimeout(followServer, 3000);
}

// A comparison whose runs are elsewhere has none of their sections.
function startRuns() {
  for (const part of data.runs.length ? [] : findAll("#bar, main > section")) part.hidden = true;
  if (!data.runs.length) return;
  bind("run", true);
  bind("site");
  bind("layer", true);
  bind("head", true);
  on(["run", "site", "layer", "head"], drawBar);
  on(["hide", "run"], markLegends);
  drawLegends();
  drawBar();
  drawSettings();
  startGrid();
  startViewer();
  startRoles();
  startCurves();
}

startState();
drawHeading();
startTheme();
startRuns();
startComparison();
startLinks();
if (data.version) setTimeout(followServer, 3000);
