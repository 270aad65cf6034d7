// Attention maps on canvases: one of them large, and all of a step and probe in small.

const view = { of: null }; // what is drawn; see drawAttention in viewer.js
let hovered = null; // {side, token} under the pointer; the state holds the one that was clicked
let cell = null; // {query, key} under the pointer or the keyboard's cursor

// The weights (query, key) of one head as numbers; null: there is no such head.
function matrixOf(layer, head) {
  const { values, missing, lower, maps, queries, keys } = view;
  const n = at(maps, layer, head), size = lower ? queries * (queries + 1) / 2 : queries * keys;
  if (n < 0 || values[n * size] === missing) return null;
  const found = new Float32Array(queries * keys);
  for (let q = 0, from = n * size; q < queries; q++) {
    const length = lower ? q + 1 : keys;
    for (let k = 0; k < length; k++) found[q * keys + k] = values[from + k] / 1000;
    from += length;
  }
  return found;
}

// 0..1 for the colours: of weights 0..1, of signed ones -most..most.
function shareOf(value, most) {
  const curve = state.scale === "sqrt" ? Math.sqrt : (x) => x;
  if (!view.maps.signed) return curve(Math.max(0, Math.min(1, value)));
  return 0.5 + Math.sign(value) * curve(Math.min(1, Math.abs(value) / most)) / 2;
}

const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);

// Draws matrices as pixels into an image, from x, y on; what lies ahead stays clear.
function paint(image, matrix, x, y, most) {
  const { queries, keys, lower, maps } = view;
  const table = tables[maps.signed ? "diverging" : "sequential"];
  for (let q = 0; q < queries; q++) {
    const length = lower ? q + 1 : keys;
    for (let k = 0; k < length; k++) {
      const colour = 3 * Math.round(255 * shareOf(matrix[q * keys + k], most));
      const to = 4 * ((y + q) * image.width + x + k);
      image.data[to] = table[colour];
      image.data[to + 1] = table[colour + 1];
      image.data[to + 2] = table[colour + 2];
      image.data[to + 3] = 255;
    }
  }
}

function imageCanvas(width, height, fillIn) {
  const canvas = make("canvas", { width, height }), context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  fillIn(image);
  context.putImageData(image, 0, 0);
  return canvas;
}

// A canvas of that many CSS pixels, sharp on any screen.
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = css("--ink");
  return context;
}

// --- the map -------------------------------------------------------------------------------------

// Where the map lies on its canvas, in CSS pixels.
function geometry() {
  const { queries, keys } = view, left = 58, top = 4;
  const box = find("#map-box").clientWidth, width = box - left - 6;
  const dx = width / keys; // where there is room, tokens stand at the axes
  const turned = dx >= 11 && view.key.some((token) => token.length * 7 > dx);
  const bottom = turned ? 62 : 40;
  const height = Math.round(Math.min(1.5 * width, Math.max(0.15 * width, width * queries / keys)));
  return { box, left, top, width, height, bottom, turned, dx, dy: height / queries };
}

function drawMap() {
  const place = view.place = geometry();
  const { left, top, width, height, bottom } = place;
  const context = prepare(find("#map"), left + width + 6, top + height + bottom);
  prepare(find("#cursor"), left + width + 6, top + height + bottom);
  find("#map-title").textContent = `Layer ${state.layer}, head ${state.head}`;
  view.matrix = matrixOf(state.layer, state.head);
  view.most = view.matrix ? largest(view.matrix) : 1;
  context.strokeStyle = css("--line");
  context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  drawAxes(context, place);
  if (view.matrix) {
    const image = imageCanvas(view.keys, view.queries,
      (pixels) => paint(pixels, view.matrix, 0, 0, view.most));
    context.imageSmoothingEnabled = false;
    context.drawImage(image, left, top, width, height);
  } else {
    context.textAlign = "center";
    context.fillText("there is no such head, or its maps were not logged", left + width / 2,
      top + height / 2);
  }
  find("#cursor").setAttribute("aria-label", `attention map of layer ${state.layer}, head `
    + `${state.head}; arrow keys move over queries and keys`);
  drawMapScale();
}

const clip = (token, most) => token.length > most ? `${token.slice(0, most - 1)}…` : token;

function drawAxes(context, { left, top, width, height, dx, dy, bottom, turned }) {
  const { query, key } = view;
  const every = (size, count) => [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n * size >= 26)
    ?? count;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const texts = dy >= 11, step = texts ? 1 : every(dy, query.length);
  for (let q = 0; q < query.length; q += step) {
    context.fillText(texts ? clip(query[q], 5) : q, left - 5, top + (q + 0.5) * dy);
  }
  const wide = dx >= 11, stride = wide ? 1 : every(dx, key.length);
  for (let k = 0; k < key.length; k += stride) {
    context.save();
    context.translate(left + (k + 0.5) * dx, top + height + 5);
    if (turned) context.rotate(-Math.PI / 2);
    context.textAlign = turned ? "right" : "center";
    context.textBaseline = turned ? "middle" : "top";
    context.fillText(wide ? clip(key[k], 5) : k, 0, 0);
    context.restore();
  }
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  context.fillText(wide ? "key [token]" : "key [position]", left + width / 2,
    top + height + bottom - 6);
  context.save();
  context.translate(11, top + height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(height < 90 ? "query" : texts ? "query [token]" : "query [position]", 0, 0);
  context.restore();
}

function drawMapScale() {
  const { left, width } = view.place, { signed } = view.maps, most = view.most;
  const long = Math.min(width, 300), context = prepare(find("#map-scale"), left + width + 6, 40);
  for (let x = 0; x < long; x++) {
    context.fillStyle = shade(signed ? "diverging" : "sequential", x / (long - 1)).paper;
    context.fillRect(left + x, 2, 1, 10);
  }
  context.fillStyle = css("--ink");
  const marks = signed ? [-most, -most / 4, 0, most / 4, most]
    : state.scale === "sqrt" ? [0, 0.05, 0.2, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  context.textBaseline = "top";
  for (const mark of marks) {
    const x = left + shareOf(mark, most) * (long - 1);
    context.fillRect(x, 12, 1, 3);
    context.textAlign = mark === marks[0] ? "left" : mark === marks.at(-1) ? "right" : "center";
    context.fillText(signed ? mark.toFixed(2) : mark, x, 17);
  }
  if (width - long < 120) return; // the heading says it too
  context.textAlign = "left";
  context.fillText("attention weight [1]", left + long + 12, 2);
}

// What lies over the map: the row and the column of the cursor, with their tokens.
function drawCursor() {
  const canvas = find("#cursor"), context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  const said = find("#cell-shown");
  said.textContent = "Point at the map, or walk over it with the arrow keys.";
  if (!cell || !view.matrix) return;
  const { left, top, width, height, dx, dy } = view.place, { query, key } = cell;
  const weight = view.matrix[query * view.keys + key];
  said.textContent = `query ${query} “${view.query[query]}” → `
    + `key ${key} “${view.key[key]}”: `
    + weight.toFixed(3) + (view.lower && key > query ? " (ahead)" : "");
  context.strokeStyle = css("--mark");
  context.lineWidth = 1;
  context.strokeRect(left, top + query * dy, width, dy);
  context.strokeRect(left + key * dx, top, dx, height);
  context.lineWidth = 2.5;
  context.strokeRect(left + key * dx - 1, top + query * dy - 1, dx + 2, dy + 2);
  const tag = (text, x, y, align) => {
    context.textAlign = align;
    context.textBaseline = "middle";
    const long = context.measureText(text).width + 6;
    const from = align === "right" ? x - long : x - long / 2;
    context.fillStyle = css("--mark");
    context.fillRect(from, y - 8, long, 16);
    context.fillStyle = css("--paper");
    context.fillText(text, align === "right" ? x - 3 : x, y);
  };
  tag(`${query} ${clip(view.query[query], 5)}`, left - 1, top + (query + 0.5) * dy, "right");
  const x = Math.max(left + 20, Math.min(left + width - 20, left + (key + 0.5) * dx));
  tag(`${key} ${clip(view.key[key], 5)}`, x, top + height + 10, "center");
}

function moveCell(to) {
  cell = to;
  hovered = to && { side: state.side, token: to[state.side] };
  drawCursor();
  drawTokens();
}

function cellAt(event) {
  const box = find("#cursor").getBoundingClientRect(), { left, top, dx, dy } = view.place;
  const key = Math.floor((event.clientX - box.left - left) / dx);
  const query = Math.floor((event.clientY - box.top - top) / dy);
  return query >= 0 && query < view.queries && key >= 0 && key < view.keys ? { query, key } : null;
}

function walkMap(event) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (event.key === "Escape") return moveCell(null);
  const move = moves[event.key];
  if (!move || !view.matrix) return;
  event.preventDefault();
  const from = cell ?? { query: state.token ?? 0, key: 0 };
  const bound = (value, count) => Math.max(0, Math.min(count - 1, value));
  moveCell(cell ? { query: bound(from.query + move[0], view.queries),
    key: bound(from.key + move[1], view.keys) } : from);
}

// --- all heads -------------------------------------------------------------------------------

// All maps of the step and probe, a pixel a weight.
function smallMaps() {
  const { layers, heads } = view.maps, { queries, keys } = view;
  const most = largest(view.values.map((value) => value === view.missing ? 0 : value)) / 1000;
  return imageCanvas(keys * heads.length, queries * layers.length, (image) => {
    layers.forEach((layer, l) => heads.forEach((head, h) => {
      const matrix = matrixOf(layer, head);
      if (matrix) paint(image, matrix, h * keys, l * queries, most);
    }));
  });
}

function drawAll() {
  const canvas = find("#all"), { layers, heads } = view.maps, { queries, keys } = view;
  const left = 24, top = 16, gap = 2;
  const dx = Math.min(130, (canvas.parentElement.clientWidth - left) / heads.length);
  const dy = Math.max(10, Math.min(1.5 * dx, dx * queries / keys));
  view.all = { left, top, dx, dy };
  const context = prepare(canvas, left + dx * heads.length, top + dy * layers.length);
  const made = `${view.of} ${state.scale}`;
  if (view.smallOf !== made) {
    view.small = smallMaps();
    view.smallOf = made;
  }
  context.textAlign = "center";
  context.textBaseline = "middle";
  heads.forEach((head, h) => context.fillText(head, left + (h + 0.5) * dx, top / 2));
  layers.forEach((layer, l) => context.fillText(`L${layer}`, left / 2 - 2, top + (l + 0.5) * dy));
  context.imageSmoothingEnabled = dx < keys * (window.devicePixelRatio || 1);
  const mark = css("--mark"), line = css("--line");
  layers.forEach((layer, l) => heads.forEach((head, h) => {
    const x = left + h * dx, y = top + l * dy;
    context.drawImage(view.small, h * keys, l * queries, keys, queries, x, y, dx - gap, dy - gap);
    const chosen = layer === state.layer && head === state.head;
    context.strokeStyle = chosen ? mark : line;
    context.lineWidth = chosen ? 2.5 : 0.5;
    context.strokeRect(x, y, dx - gap, dy - gap);
  }));
  canvas.setAttribute("aria-label", `${layers.length} layers of ${heads.length} heads in small`);
}

function headAt(event) {
  const box = find("#all").getBoundingClientRect(), { left, top, dx, dy } = view.all;
  const layer = view.maps.layers[Math.floor((event.clientY - box.top - top) / dy)];
  const head = view.maps.heads[Math.floor((event.clientX - box.left - left) / dx)];
  return layer === undefined || head === undefined ? null : { layer, head };
}
