// Canvases: of so many pixels, or of so many CSS pixels and sharp.
import { css } from "./colours.js";
import { find, make } from "./elements.js";

/**
 * @param {HTMLCanvasElement} canvas
 * @returns {CanvasRenderingContext2D}
 */
export function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser draws on no canvas");
  return context;
}

/**
 * @param {number} width
 * @param {number} height
 * @param {(image: ImageData) => void} fillIn
 */
export function imageCanvas(width, height, fillIn) {
  const canvas = make("canvas", { width, height }), context = contextOf(canvas);
  const image = context.createImageData(width, height);
  fillIn(image);
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * A canvas of that many CSS pixels, sharp on any screen.
 * @param {string} selector
 * @param {number} width
 * @param {number} height
 */
export function prepare(selector, width, height) {
  const canvas = find(selector, HTMLCanvasElement), context = contextOf(canvas);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = css("--ink");
  return context;
}
