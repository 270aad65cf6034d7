// Elements of the page: found, made.

/**
 * The first element of a CSS selector, which must be there and of that class.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} selector
 * @param {new () => T} [type]
 * @returns {T}
 */
export function find(selector, type) {
  const found = document.querySelector(selector);
  if (!(found instanceof (type ?? HTMLElement))) throw new Error(`the page has no ${selector}`);
  return /** @type {T} */ (found);
}

/**
 * Those of a CSS selector inside the page.
 * @param {string} selector
 * @returns {HTMLElement[]}
 */
export const findAll = (selector) => [...document.querySelectorAll(selector)]
  .filter(/** @returns {element is HTMLElement} */ (element) => element instanceof HTMLElement);

/**
 * The children of an element.
 * @param {HTMLElement} element
 */
export const childrenOf = (element) => /** @type {HTMLElement[]} */ ([...element.children]);

/**
 * The closest element around what an event hit; null: there is none.
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export const around = (event, selector) =>
  event.target instanceof Element ? event.target.closest(selector) : null;

/** @typedef {Record<string, string | number | boolean | null>} Attributes */

/**
 * A style goes by way of its object: as an attribute the page's policy refuses it.
 * @param {HTMLElement | SVGElement} element
 * @param {Attributes} attributes
 */
function attribute(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) continue;
    if (name === "style") element.style.cssText = String(value);
    else element.setAttribute(name, String(value));
  }
}

/**
 * An element; text is text, never markup. An attribute of null is left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} attributes
 * @param {(Node | string)[]} children
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  attribute(element, attributes);
  element.append(...children);
  return element;
}

/**
 * @param {string} tag
 * @param {Attributes} attributes
 */
export function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  attribute(element, attributes);
  return element;
}
