// The attention viewer: the tokens of a probe, and what ties them to the maps.

// One strip where queries and keys are the same tokens, else one of each.
function makeStrips() {
  const same = view.query.join("\n") === view.key.join("\n");
  const wanted = JSON.stringify([view.query, view.key]);
  find("#sides").hidden = !same;
  find("#strips").classList.toggle("signed", view.maps.signed);
  view.strips = same ? ["key"] : ["query", "key"];
  if (find("#strips").dataset.made === wanted) return;
  find("#strips").dataset.made = wanted;
  find("#strips").replaceChildren(...view.strips.map((side) => {
    const tokens = view[side].map((token, n) => make("span", { class: "token", role: "option",
      id: `${side}-${n}`, "data-token": n, title: `${n}: ${token}` },
      make("span", { class: "text" }, token), make("span", { class: "weight" })));
    const title = same ? [] : [make("div", { class: "strip-title" }, side === "query" ? "queries"
      : "keys")];
    return make("div", { class: "strip" }, ...title, make("div", { class: "tokens", tabindex: 0,
      role: "listbox", "data-side": side, "aria-label": same ? "tokens" : title[0].textContent },
      ...tokens));
  }));
}

// The token whose weights are shown, and which side of the map it is on.
const activeToken = () => hovered ?? (state.token === null ? null
  : { side: state.side, token: state.token });

const parse = (colour) => colour.match(/\d+/g).slice(0, 3).map(Number);

function drawTokens() {
  const active = activeToken(), { query, key, keys, matrix, lower, maps } = view;
  const single = view.strips.length === 1;
  const weight = (n) => active.side === "query" ? matrix[active.token * keys + n]
    : matrix[n * keys + active.token];
  const ahead = (n) => lower && (active.side === "query" ? n > active.token : n < active.token);
  const paper = parse(css("--paper")), accent = parse(css("--accent"));
  const signs = [[128, 115, 172], [224, 130, 20]]; // of negative and positive weights, as in maps
  for (const strip of document.querySelectorAll(".tokens")) {
    const { side } = strip.dataset, coloured = active && matrix && (single || side !== active.side);
    for (const element of strip.children) {
      const n = Number(element.dataset.token);
      const chosen = active !== null && n === active.token && (single || side === active.side);
      element.setAttribute("aria-selected", chosen);
      element.classList.toggle("pinned", n === state.token && (single || side === state.side));
      if (chosen) strip.setAttribute("aria-activedescendant", element.id);
      const number = coloured && !ahead(n) ? weight(n) : null;
      element.lastChild.textContent = number === null ? "" : asWeight(number);
      if (number === null) {
        element.removeAttribute("style");
        if (coloured) element.style.opacity = 0.4;
        continue;
      }
      const share = shareOf(number, view.most);
      const colours = legible(maps.signed
        ? mix(paper, signs[number < 0 ? 0 : 1], Math.abs(share - 0.5) * 2)
        : mix(paper, accent, share));
      element.style.cssText = `background:${colours.paper};color:${colours.ink}`;
    }
  }
  sayToken(active, weight);
}

const asWeight = (number) => Math.abs(number) < 0.0005 ? "0" : number.toFixed(3);

function sayToken(active, weight) {
  const said = find("#token-shown");
  said.dataset.shown = active ? `${active.side} ${active.token}` : "";
  if (!active || !view.matrix) {
    said.textContent = "Point at a token, tap it, or walk with the arrow keys, to see its weights.";
    return;
  }
  const other = active.side === "query" ? "key" : "query", tokens = view[other];
  const order = tokens.map((_, n) => n).sort((a, b) => Math.abs(weight(b)) - Math.abs(weight(a)));
  const top = order.slice(0, 5).filter((n) => Math.abs(weight(n)) >= 0.0005)
    .map((n) => `${n} “${tokens[n]}” ${weight(n).toFixed(3)}`);
  said.textContent = `${active.token} “${view[active.side][active.token]}” `
    + (active.side === "query" ? "attends to " : "is attended by ") + (top.join(", ") || "nothing");
}

function tokenAt(event) {
  const element = event.target.closest(".token");
  if (!element) return null;
  const side = view.strips.length === 1 ? state.side : element.parentElement.dataset.side;
  return { side, token: Number(element.dataset.token) };
}

function walkTokens(event) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -1e9, End: 1e9 };
  if (event.key === "Escape") return set({ token: null });
  if (!(event.key in moves)) return;
  event.preventDefault();
  hovered = null;
  const own = event.target.closest(".tokens").dataset.side;
  const side = view.strips.length === 1 ? state.side : own;
  const last = view[side].length - 1;
  const from = state.token === null || side !== state.side ? (moves[event.key] > 0 ? -1 : last + 1)
    : state.token;
  set({ side, token: Math.max(0, Math.min(last, from + moves[event.key])) });
}

// --- together ------------------------------------------------------------------------------------

// How a text begins: characters close together, words apart.
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
  fill(find("#step"), maps.steps.map((step) => [step, step]), state.step);
  fill(find("#probe"), maps.probes.map((probe, n) => [probe, `${probe}: ${start(maps.query[n])}`]),
    state.probe);
  find("#scale").value = state.scale;
  const wanted = `${state.run} ${state.site} ${state.step} ${state.probe}`;
  view.wanted = wanted;
  if (view.of !== wanted) {
    const id = `${maps.prefix}-${state.step}-${state.probe}`, values = await array(id);
    if (view.wanted !== wanted) return; // another choice was made meanwhile
    const n = maps.probes.indexOf(state.probe), query = maps.query[n], key = maps.key[n];
    const missing = values instanceof Int16Array ? -(2 ** 15) : -(2 ** 31); // no such head
    Object.assign(view, { of: wanted, values, missing, maps, query, key, queries: query.length,
      keys: key.length, lower: "lower" in document.getElementById(id).dataset });
    hovered = cell = null;
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

function startViewer() {
  bind("step", true);
  bind("probe", true);
  bind("scale");
  const radios = bindRadio("side");
  const strips = find("#strips"), cursor = find("#cursor");
  strips.addEventListener("pointermove", (event) => {
    const to = event.pointerType === "touch" ? null : tokenAt(event);
    if (!to || (hovered?.token === to.token && hovered.side === to.side)) return;
    hovered = to;
    drawTokens();
  });
  strips.addEventListener("pointerleave", () => { hovered = null; drawTokens(); });
  strips.addEventListener("click", (event) => {
    const to = tokenAt(event);
    if (!to) return;
    hovered = null;
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
  const redraw = () => view.of && drawView();
  on(["run", "site", "step", "probe"], drawAttention);
  on(["layer", "head", "scale"], redraw);
  on(["token", "side"], () => view.of && drawTokens());
  onTheme.push(redraw);
  new ResizeObserver(() => {
    if (view.of && find("#map-box").clientWidth !== view.place?.box) redraw();
  }).observe(find("#map-box"));
  radios();
  drawAttention();
}
