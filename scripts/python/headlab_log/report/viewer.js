// The attention viewer: what ties the tokens of a probe to the maps.
import { onTheme } from "./colours.js";
import { bind, bindRadio, fill } from "./controls.js";
import { array, data } from "./data.js";
import { find } from "./elements.js";
import { cellName } from "./grid.js";
import { patchAt, walkPatches } from "./image.js";
import { cellAt, drawAll, drawBeside, drawCursor, drawMap, headAt, isResized, moveCell, walkMap }
  from "./map.js";
import { among, indexOf, on, set, site, state } from "./state.js";
import { drawTokens, makeStrips, tokenAt, walkTokens } from "./tokens.js";
import { clip, pointed, shownOf, view } from "./view.js";

/**
 * How a text begins: characters close together, words apart.
 * @param {string[]} tokens
 */
function start(tokens) {
  return clip(tokens.join(tokens.some((token) => token.length > 1) ? " " : ""), 24);
}

async function drawAttention() {
  const { maps } = site(), missing = find("#attention-missing");
  find("#attention-body").hidden = !maps;
  missing.hidden = Boolean(maps);
  if (!maps) {
    const logged = Object.keys(data.runs[state.run].curves).length > 0;
    missing.textContent = !logged ? "This run was made, not trained: it has no log.h5 and no maps."
      : data.left_out.length ? "They were left out; see above."
      : "This run has no attention maps: its config asks for none (log.attention.every, "
      + "log.attention.probes), or its kind of heads has no weights over tokens.";
    view.of = null;
    return;
  }
  fill("#step", maps.steps.map((step) => [step, step]), state.step);
  fill("#probe", maps.probes.map((probe, n) => [probe, maps.image ? `image ${probe}`
    : `${probe}: ${start(maps.query[n])}`]), state.probe);
  find("#scale", HTMLSelectElement).value = state.scale;
  const wanted = `${state.run} ${state.site} ${state.step} ${state.probe}`;
  view.wanted = wanted;
  if (view.of !== wanted) {
    const id = `${maps.prefix}-${state.step}-${state.probe}`, values = await array(id);
    const image = maps.image && await array(imageId(maps));
    if (view.wanted !== wanted) return; // another choice was made meanwhile
    Object.assign(view, { of: wanted, image }, shownOf(values, maps, id, state.probe));
    pointed.token = pointed.cell = null;
    makeStrips();
  }
  drawView();
}

// What depends on the head, the token and the colours.
function drawView() {
  drawMap();
  drawCursor();
  drawAll();
  drawTokens();
  drawWords();
  drawOther();
  find("#attention-body").dataset.shown = `${view.of} ${state.layer} ${state.head}`;
}

// What the head does, in words.
function drawWords() {
  const { statistics, words, unlike } = site(), { layer, head } = state;
  const said = statistics && words ? words[indexOf(statistics, layer, head)] ?? "" : "";
  const least = unlike && unlike[0] === layer && unlike[1] === head;
  find("#head-words").textContent = said
    + (said && least ? " No other head is less like the rest." : "");
}

/** @param {import("./data.js").Maps} maps */
const imageId = (maps) => `${maps.prefix}-image-${state.probe}`;

/**
 * What the probe looks like in a page, "" for a text.
 * @param {import("./data.js").Maps} maps
 */
const pixelsOf = (maps) => maps.image ? find(`#${imageId(maps)}`).textContent : "";

/** Runs that have maps of the same text or image: its number must mean the same tokens. */
function comparable() {
  const tokens = view.key.join("\u0000"), pixels = pixelsOf(view.maps);
  return data.runs.map((_, run) => run).filter((run) => {
    const maps = site(run).maps, n = maps?.probes.indexOf(state.probe) ?? -1;
    return run !== state.run && maps && n >= 0 && maps.key[n].join("\u0000") === tokens
      && pixelsOf(maps) === pixels;
  });
}

let besideDrawn = 0;
async function drawOther() {
  const current = ++besideDrawn, runs = comparable(), run = among(state.beside, runs, runs[0] ?? null);
  const maps = run === null ? undefined : site(run).maps;
  find("#beside").hidden = !maps;
  if (run === null || !maps) return;
  fill("#beside-run", runs.map((one) => [one, data.runs[one].label]), run);
  const step = maps.steps.filter((one) => one <= (state.step ?? Infinity)).at(-1) ?? maps.steps[0];
  const id = `${maps.prefix}-${step}-${state.probe}`, values = await array(id);
  if (current !== besideDrawn) return;
  find("#beside-step").textContent = `, step ${step}`;
  drawBeside(shownOf(values, maps, id, state.probe));
  find("#beside").dataset.shown = `${run} ${state.site} ${step} ${state.probe} ${state.layer} `
    + state.head;
}

/**
 * Lets tokens be pointed at and chosen in an element, by pointer and by keyboard.
 * @param {HTMLElement} element
 * @param {(event: MouseEvent) => import("./view.js").Token | null} at
 * @param {(event: KeyboardEvent) => void} walk
 */
function offerTokens(element, at, walk) {
  element.addEventListener("pointermove", (event) => {
    const to = event.pointerType === "touch" ? null : at(event);
    if (!to || (pointed.token?.token === to.token && pointed.token.side === to.side)) return;
    pointed.token = to;
    drawTokens();
  });
  element.addEventListener("pointerleave", () => { pointed.token = null; drawTokens(); });
  element.addEventListener("click", (event) => {
    const to = at(event);
    if (!to) return;
    pointed.token = null;
    set(to.token === state.token && to.side === state.side ? { token: null } : to);
  });
  element.addEventListener("keydown", walk);
}

export function startViewer() {
  bind("beside-run", true, "beside");
  bind("step", true);
  bind("probe", true);
  bind("scale");
  const radios = bindRadio("side");
  const cursor = find("#cursor");
  offerTokens(find("#strips"), tokenAt, walkTokens);
  offerTokens(find("#image-canvas"), patchAt, walkPatches);
  cursor.addEventListener("pointermove", (event) => moveCell(cellAt(event)));
  cursor.addEventListener("pointerdown", (event) => moveCell(cellAt(event)));
  cursor.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") moveCell(null);
  });
  cursor.addEventListener("keydown", walkMap);
  find("#all").addEventListener("click", (event) => {
    const head = headAt(event);
    if (head) set(head);
  });
  find("#all").addEventListener("pointermove", (event) => {
    const head = headAt(event);
    find("#all").title = head ? cellName(head) : "";
  });
  const redraw = () => { if (view.of) drawView(); };
  on(["run", "site", "step", "probe"], drawAttention);
  on(["layer", "head", "scale"], redraw);
  on(["beside"], () => { if (view.of) drawOther(); });
  on(["token", "side"], () => { if (view.of) drawTokens(); });
  onTheme.push(redraw);
  new ResizeObserver(() => {
    if (isResized()) redraw();
  }).observe(find("#map-box"));
  radios();
  drawAttention();
}
