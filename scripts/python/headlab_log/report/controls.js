// Selects and radio buttons that set the state.
import { find, findAll, make } from "./elements.js";
import { on, set, state } from "./state.js";

/**
 * Fills a select with [value, text] pairs, and shows the current one.
 * @param {string} selector
 * @param {[string | number, string | number][]} options
 * @param {string | number | null} current
 */
export function fill(selector, options, current) {
  const select = find(selector, HTMLSelectElement), wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.replaceChildren(...options.map(([value, text]) =>
      make("option", { value }, String(text))));
    select.dataset.options = wanted;
  }
  select.value = String(current);
}

/**
 * Lets a select set a key of the state: that which it is named after, or another.
 * @param {string} id
 * @param {boolean} numeric
 * @param {string} key
 */
export function bind(id, numeric = false, key = id.replace("-", "_")) {
  const select = find(`#${id}`, HTMLSelectElement);
  select.addEventListener("change", () =>
    set({ [key]: numeric ? Number(select.value) : select.value }));
}

/**
 * Lets radio buttons set a key of the state; returns what shows it.
 * @param {"view" | "side"} name
 */
export function bindRadio(name) {
  const radios = /** @type {HTMLInputElement[]} */ (findAll(`input[name="${name}"]`));
  const show = () => radios.forEach((radio) => { radio.checked = radio.value === state[name]; });
  radios.forEach((radio) => radio.addEventListener("change", () => set({ [name]: radio.value })));
  on([name], show);
  return show;
}
