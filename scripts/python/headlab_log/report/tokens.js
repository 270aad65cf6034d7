// The tokens of a probe as strips, with the weights of the one that is pointed at.
import { css, legible, mix, parse, signs } from "./colours.js";
import { around, childrenOf, find, findAll, make } from "./elements.js";
import { drawImage } from "./image.js";
import { set, state } from "./state.js";
import { activeToken, asWeight, pointed, shareOf, view, weightOf } from "./view.js";

/** @typedef {import("./view.js").Token} Token */
/** @typedef {import("./view.js").Side} Side */

/** @type {Record<"cross" | "within", Record<Side, string>>} */
const titles = { cross: { query: "target", key: "source" }, // also where both say the same
  within: { query: "queries", key: "keys" } };

// One strip where queries and keys are the same tokens, else one of each.
export function makeStrips() {
  const kind = state.site === "cross" ? "cross" : "within";
  const same = kind === "within" && view.query.join("\n") === view.key.join("\n");
  const wanted = JSON.stringify([kind, view.query, view.key]);
  find("#sides").hidden = !same;
  find("#strips").classList.toggle("signed", view.maps.signed);
  view.strips = same ? ["key"] : ["query", "key"];
  if (find("#strips").dataset.made === wanted) return;
  find("#strips").dataset.made = wanted;
  find("#strips").replaceChildren(...view.strips.map((side) => {
    const tokens = view[side].map((token, n) => make("span", { class: "token", role: "option",
      id: `${side}-${n}`, "data-token": n, title: `${n}: ${token}` },
      make("span", { class: "text" }, token), make("span", { class: "weight" })));
    const title = same ? [] : [make("div", { class: "strip-title" }, titles[kind][side])];
    return make("div", { class: "strip" }, ...title, make("div", { class: "tokens", tabindex: 0,
      role: "listbox", "data-side": side, "aria-label": same ? "tokens" : title[0].textContent },
      ...tokens));
  }));
}

/** @param {HTMLElement} strip */
const sideOf = (strip) => strip.dataset.side === "query" ? "query" : "key";

export function drawTokens() {
  const active = activeToken(), { matrix, lower, maps } = view;
  const single = view.strips.length === 1;
  /** @type {(active: Token, n: number) => boolean} */
  const ahead = ({ side, token }, n) => lower && (side === "query" ? n > token : n < token);
  const paper = parse(css("--paper")), accent = parse(css("--accent"));
  for (const strip of findAll(".tokens")) {
    const side = sideOf(strip), coloured = active && matrix && (single || side !== active.side);
    for (const element of childrenOf(strip)) {
      const n = Number(element.dataset.token);
      const chosen = active !== null && n === active.token && (single || side === active.side);
      element.setAttribute("aria-selected", String(chosen));
      element.classList.toggle("pinned", n === state.token && (single || side === state.side));
      if (chosen) strip.setAttribute("aria-activedescendant", element.id);
      const number = coloured && !ahead(active, n) ? weightOf(active, matrix, n) : null;
      childrenOf(element)[1].textContent = number === null ? "" : asWeight(number);
      if (number === null) {
        element.removeAttribute("style");
        if (coloured) element.style.opacity = "0.4";
        continue;
      }
      const share = shareOf(number, view.most);
      const colours = legible(maps.signed
        ? mix(paper, signs[number < 0 ? 0 : 1], Math.abs(share - 0.5) * 2)
        : mix(paper, accent, share));
      element.style.cssText = `background:${colours.paper};color:${colours.ink}`;
    }
  }
  sayToken(active);
  drawImage();
}

/** @param {Token | null} active */
function sayToken(active) {
  const said = find("#token-shown");
  said.dataset.shown = active ? `${active.side} ${active.token}` : "";
  const { matrix } = view;
  if (!active || !matrix) {
    said.textContent = "Point at a token, tap it, or walk with the arrow keys, to see its weights.";
    return;
  }
  const other = active.side === "query" ? "key" : "query", tokens = view[other];
  const weights = tokens.map((_, n) => weightOf(active, matrix, n));
  const order = tokens.map((_, n) => n)
    .sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a]));
  const top = order.slice(0, 5).filter((n) => Math.abs(weights[n]) >= 0.0005)
    .map((n) => `${n} “${tokens[n]}” ${weights[n].toFixed(3)}`);
  said.textContent = `${active.token} “${view[active.side][active.token]}” `
    + (active.side === "query" ? "attends to " : "is attended by ") + (top.join(", ") || "nothing");
}

/**
 * The token that an event hit.
 * @param {Event} event
 * @returns {Token | null}
 */
export function tokenAt(event) {
  const element = around(event, ".token"), strip = around(event, ".tokens");
  if (!element || !strip) return null;
  const side = view.strips.length === 1 ? state.side : sideOf(strip);
  return { side, token: Number(element.dataset.token) };
}

/** @param {KeyboardEvent} event */
export function walkTokens(event) {
  const strip = around(event, ".tokens");
  /** @type {Record<string, number>} */
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -1e9, End: 1e9 };
  if (event.key === "Escape") return set({ token: null });
  if (!strip || !(event.key in moves)) return;
  event.preventDefault();
  pointed.token = null;
  const side = view.strips.length === 1 ? state.side : sideOf(strip);
  const last = view[side].length - 1;
  const from = state.token === null || side !== state.side ? (moves[event.key] > 0 ? -1 : last + 1)
    : state.token;
  set({ side, token: Math.max(0, Math.min(last, from + moves[event.key])) });
}
