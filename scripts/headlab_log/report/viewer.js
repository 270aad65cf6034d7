// The attention viewer: what ties the tokens of a probe to the maps.
import { onTheme } from "./colours.js";
import { bind, bindRadio, fill } from "./controls.js";
import { array, data } from "./data.js";
import { find } from "./elements.js";
import { cellName } from "./grid.js";
import { cellAt, drawAll, drawCursor, drawMap, headAt, isResized, moveCell, walkMap }
  from "./map.js";
import { on, set, site, state } from "./state.js";
import { drawTokens, makeStrips, tokenAt, walkTokens } from "./tokens.js";
import { clip, pointed, view } from "./view.js";

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
  fill("#probe", maps.probes.map((probe, n) => [probe, `${probe}: ${start(maps.query[n])}`]),
    state.probe);
  find("#scale", HTMLSelectElement).value = state.scale;
  const wanted = `${state.run} ${state.site} ${state.step} ${state.probe}`;
  view.wanted = wanted;
  if (view.of !== wanted) {
    const id = `${maps.prefix}-${state.step}-${state.probe}`, values = await array(id);
    if (view.wanted !== wanted) return; // another choice was made meanwhile
    const n = maps.probes.indexOf(state.probe), query = maps.query[n], key = maps.key[n];
    const missing = values instanceof Int16Array ? -(2 ** 15) : -(2 ** 31);
    Object.assign(view, { of: wanted, values, missing, maps, query, key, queries: query.length,
      keys: key.length, lower: "lower" in find(`#${id}`).dataset });
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
  find("#attention-body").dataset.shown = `${view.of} ${state.layer} ${state.head}`;
}

export function startViewer() {
  bind("step", true);
  bind("probe", true);
  bind("scale");
  const radios = bindRadio("side");
  const strips = find("#strips"), cursor = find("#cursor");
  strips.addEventListener("pointermove", (event) => {
    const to = event.pointerType === "touch" ? null : tokenAt(event);
    if (!to || (pointed.token?.token === to.token && pointed.token.side === to.side)) return;
    pointed.token = to;
    drawTokens();
  });
  strips.addEventListener("pointerleave", () => { pointed.token = null; drawTokens(); });
  strips.addEventListener("click", (event) => {
    const to = tokenAt(event);
    if (!to) return;
    pointed.token = null;
    set(to.token === state.token && to.side === state.side ? { token: null } : to);
  });
  strips.addEventListener("keydown", walkTokens);
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
  on(["token", "side"], () => { if (view.of) drawTokens(); });
  onTheme.push(redraw);
  new ResizeObserver(() => {
    if (isResized()) redraw();
  }).observe(find("#map-box"));
  radios();
  drawAttention();
}
