/* A setting in the words of the form: its label, and its value or default. */

import { valueWords } from "./controls.js";
import { parseValue } from "./link.js";
import { VIEWS } from "./state.js";

/** What stands for a key that a set-up does not have. */
export const NONE = "–";
const DEFAULT = " (default)";
const ENGINE = { train: "engine.type", serve: "inference.engine" };
const SECTIONS = { inference: "serving", parallelism: "training" }; // where two sections have a label

/** A key's label, with its section where another key has the same; undefined where it has none. */
export function titled(form, path, rows) {
  const label = labelOf(form, path);
  const alike = rows.filter(([other]) => other !== path && labelOf(form, other) === label).length;
  return label && alike ? `${label} (${SECTIONS[path.split(".")[0]] ?? path.split(".")[0]})` : label;
}

const labelOf = (form, path) => form?.fields.find((one) => one.path === path)?.label;

/** The words for a setting's text, or for its default where it has none. */
export function settingWords(form, setup, path, text) {
  const field = form?.fields.find((one) => one.path === path);
  if (text !== undefined) return valueWords(parseValue(text), field);
  const { sections, without } = VIEWS[setup.view];
  if (!sections.includes(path.split(".")[0]) || without(setup.run).includes(path)) return NONE;
  const [section, group, inner] = path.split(".");
  if (inner && setup.run[section]?.[group] === undefined) return NONE; // no LoRA has no rank
  const fallback = field?.defaults ? field.defaults[engineOf(form, setup)] : field?.default;
  if (field?.defaults && fallback === undefined) return NONE; // the engine does not have the key
  return fallback === null || fallback === undefined ? "default" : `${valueWords(fallback, field)}${DEFAULT}`;
}

/** The words for a setting without those that call it a default. */
export const bare = (words) => (words.endsWith(DEFAULT) ? words.slice(0, -DEFAULT.length) : words);

function engineOf(form, { view, run }) {
  const [section, key] = ENGINE[view].split(".");
  const said = run[section]?.[key] ?? form.fields.find((one) => one.path === ENGINE[view]).default;
  return form.engines.find((one) => one.name === said || one.aliases.includes(said))?.name ?? said;
}
