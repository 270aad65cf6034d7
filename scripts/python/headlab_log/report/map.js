// Attention maps on canvases: one of them large, and all of a step and probe in small.
import { contextOf, imageCanvas, prepare } from "./canvas.js";
import { css, shade, tables } from "./colours.js";
import { find } from "./elements.js";
import { state } from "./state.js";
import { drawTokens } from "./tokens.js";
import { clip, largest, matrixOf, pointed, shareOf, view } from "./view.js";

/**
 * Draws a matrix as pixels into an image, from x, y on; what lies ahead stays clear.
 * @param {ImageData} image
 * @param {Float32Array} matrix
 * @param {number} x
 * @param {number} y
 * @param {number} most
 * @param {import("./view.js").Shown} from
 */
function paint(image, matrix, x, y, most, from = view) {
  const { queries, keys, lower, maps } = from;
  const table = tables[maps.signed ? "diverging" : "sequential"];
  for (let q = 0; q < queries; q++) {
    const length = lower ? q + 1 : keys;
    for (let k = 0; k < length; k++) {
      const colour = 3 * Math.round(255 * shareOf(matrix[q * keys + k], most, maps.signed));
      const to = 4 * ((y + q) * image.width + x + k);
      image.data[to] = table[colour];
      image.data[to + 1] = table[colour + 1];
      image.data[to + 2] = table[colour + 2];
      image.data[to + 3] = 255;
    }
  }
}

// --- the map -------------------------------------------------------------------------------------

/** Where the large map and its head lie on their canvases. */
const drawn = {
  map: { box: 0, left: 0, top: 0, width: 0, height: 0, bottom: 0, turned: false, dx: 1, dy: 1 },
  all: { left: 0, top: 0, dx: 1, dy: 1 },
  /** All maps, a pixel a weight, and what they are of. */
  small: { of: "", canvas: document.createElement("canvas") },
};

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

// Whether the map was drawn for another width than it has now.
export const isResized = () => find("#map-box").clientWidth !== drawn.map.box;

export function drawMap() {
  const place = drawn.map = geometry();
  const { left, top, width, height, bottom } = place;
  const context = prepare("#map", left + width + 6, top + height + bottom);
  prepare("#cursor", left + width + 6, top + height + bottom);
  find("#map-title").textContent = `Layer ${state.layer}, head ${state.head}`;
  view.matrix = matrixOf(state.layer, state.head);
  view.most = view.matrix ? largest(view.matrix) : 1;
  context.strokeStyle = css("--line");
  context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  drawAxes(context, place);
  const { matrix, most } = view;
  if (matrix) {
    const image = imageCanvas(view.keys, view.queries,
      (pixels) => paint(pixels, matrix, 0, 0, most));
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

/**
 * The map of the selected head in another run, of the same size as the one beside it.
 * @param {import("./view.js").Shown} other
 */
export function drawBeside(other) {
  const matrix = matrixOf(state.layer, state.head, other), { left, top, width, height } = drawn.map;
  const box = Math.min(width + left, find("#beside-box").clientWidth || width + left);
  const wide = box - 6, high = Math.round(height * wide / width);
  const context = prepare("#beside-map", box, top + high + 4);
  context.strokeStyle = css("--line");
  context.strokeRect(2.5, top - 0.5, wide + 1, high + 1);
  if (!matrix) {
    context.textAlign = "center";
    context.fillText("this run has no such head", 3 + wide / 2, top + high / 2);
    return;
  }
  const most = largest(matrix);
  context.imageSmoothingEnabled = false;
  context.drawImage(imageCanvas(other.keys, other.queries,
    (pixels) => paint(pixels, matrix, 0, 0, most, other)), 3, top, wide, high);
}

/** @type {(context: CanvasRenderingContext2D, place: typeof drawn.map) => void} */
function drawAxes(context, { left, top, width, height, dx, dy, bottom, turned }) {
  const { query, key } = view;
  /** @type {(size: number, count: number) => number} */
  const every = (size, count) => [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n * size >= 26)
    ?? count;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const texts = dy >= 11, step = texts ? 1 : every(dy, query.length);
  for (let q = 0; q < query.length; q += step) {
    context.fillText(texts ? clip(query[q], 5) : String(q), left - 5, top + (q + 0.5) * dy);
  }
  const wide = dx >= 11, stride = wide ? 1 : every(dx, key.length);
  for (let k = 0; k < key.length; k += stride) {
    context.save();
    context.translate(left + (k + 0.5) * dx, top + height + 5);
    if (turned) context.rotate(-Math.PI / 2);
    context.textAlign = turned ? "right" : "center";
    context.textBaseline = turned ? "middle" : "top";
    context.fillText(wide ? clip(key[k], 5) : String(k), 0, 0);
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
  const { left, width } = drawn.map, { signed } = view.maps, most = view.most;
  const long = Math.min(width, 300), context = prepare("#map-scale", left + width + 6, 40);
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
    context.fillText(signed ? mark.toFixed(2) : String(mark), x, 17);
  }
  if (width - long < 120) return; // the heading says it too
  context.textAlign = "left";
  context.fillText("attention weight [1]", left + long + 12, 2);
}

// What lies over the map: the row and the column of the cursor, with their tokens.
export function drawCursor() {
  const canvas = find("#cursor", HTMLCanvasElement), context = contextOf(canvas);
  const { cell } = pointed;
  context.clearRect(0, 0, canvas.width, canvas.height);
  const said = find("#cell-shown");
  said.textContent = "Point at the map, or walk over it with the arrow keys.";
  if (!cell || !view.matrix) return;
  const { left, top, width, height, dx, dy } = drawn.map, { query, key } = cell;
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
  /** @type {(text: string, x: number, y: number, align: "right" | "center") => void} */
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

/** @param {import("./view.js").Cell | null} to */
export function moveCell(to) {
  pointed.cell = to;
  pointed.token = to && { side: state.side, token: to[state.side] };
  drawCursor();
  drawTokens();
}

/** @param {MouseEvent} event */
export function cellAt(event) {
  const box = find("#cursor").getBoundingClientRect(), { left, top, dx, dy } = drawn.map;
  const key = Math.floor((event.clientX - box.left - left) / dx);
  const query = Math.floor((event.clientY - box.top - top) / dy);
  return query >= 0 && query < view.queries && key >= 0 && key < view.keys ? { query, key } : null;
}

/** @param {KeyboardEvent} event */
export function walkMap(event) {
  /** @type {Record<string, number[]>} */
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (event.key === "Escape") return moveCell(null);
  const move = moves[event.key];
  if (!move || !view.matrix) return;
  event.preventDefault();
  const from = pointed.cell ?? { query: state.token ?? 0, key: 0 };
  /** @type {(value: number, count: number) => number} */
  const bound = (value, count) => Math.max(0, Math.min(count - 1, value));
  moveCell(pointed.cell ? { query: bound(from.query + move[0], view.queries),
    key: bound(from.key + move[1], view.keys) } : from);
}

// --- all heads -------------------------------------------------------------------------------

// All maps of the step and probe, a pixel a weight.
function smallMaps() {
  const { layers, heads } = view.maps, { queries, keys } = view;
  const most = largest(Array.from(view.values, (one) => one === view.missing ? 0 : one)) / 1000;
  return imageCanvas(keys * heads.length, queries * layers.length, (image) => {
    layers.forEach((layer, l) => heads.forEach((head, h) => {
      const matrix = matrixOf(layer, head);
      if (matrix) paint(image, matrix, h * keys, l * queries, most);
    }));
  });
}

export function drawAll() {
  const canvas = find("#all"), { layers, heads } = view.maps, { queries, keys } = view;
  const left = 24, top = 16, gap = 2;
  const dx = Math.min(130, ((canvas.parentElement?.clientWidth ?? 0) - left) / heads.length);
  const dy = Math.max(10, Math.min(1.5 * dx, dx * queries / keys));
  drawn.all = { left, top, dx, dy };
  const context = prepare("#all", left + dx * heads.length, top + dy * layers.length);
  const made = `${view.of} ${state.scale}`;
  if (drawn.small.of !== made) drawn.small = { of: made, canvas: smallMaps() };
  const small = drawn.small.canvas;
  context.textAlign = "center";
  context.textBaseline = "middle";
  heads.forEach((head, h) => context.fillText(String(head), left + (h + 0.5) * dx, top / 2));
  layers.forEach((layer, l) => context.fillText(`L${layer}`, left / 2 - 2, top + (l + 0.5) * dy));
  context.imageSmoothingEnabled = dx < keys * (window.devicePixelRatio || 1);
  const mark = css("--mark"), line = css("--line");
  layers.forEach((layer, l) => heads.forEach((head, h) => {
    const x = left + h * dx, y = top + l * dy;
    context.drawImage(small, h * keys, l * queries, keys, queries, x, y, dx - gap, dy - gap);
    const chosen = layer === state.layer && head === state.head;
    context.strokeStyle = chosen ? mark : line;
    context.lineWidth = chosen ? 2.5 : 0.5;
    context.strokeRect(x, y, dx - gap, dy - gap);
  }));
  canvas.setAttribute("aria-label", `${layers.length} layers of ${heads.length} heads in small`);
}

/** @param {MouseEvent} event */
export function headAt(event) {
  const box = find("#all").getBoundingClientRect(), { left, top, dx, dy } = drawn.all;
  const layer = view.maps.layers[Math.floor((event.clientY - box.top - top) / dy)];
  const head = view.maps.heads[Math.floor((event.clientX - box.left - left) / dx)];
  return layer === undefined || head === undefined ? null : { layer, head };
}
