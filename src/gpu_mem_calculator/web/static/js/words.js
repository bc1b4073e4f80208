/* How the page writes things: sizes, counts, commands, and the elements that hold them. */

import { settingsOf } from "./link.js";

const GIB = 2 ** 30;
const SVG = "http://www.w3.org/2000/svg";
const HUNDREDTHS = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const SETTLED = 250; // milliseconds without news before screen readers are told

/** Bytes in GiB with two digits, as the report writes them. */
export function gib(bytes) {
  if (bytes > 0 && bytes < 0.005 * GIB) return "< 0.01";
  return HUNDREDTHS.format(bytes / GIB);
}

/** A count with separators. */
export const count = (value) => TENTHS.format(value);

/** What a change saves, with its sign: −11.90 GiB. */
export function saving(bytes) {
  const sign = bytes > 0 ? "−" : bytes < 0 ? "+" : "±";
  return `${sign}${gib(Math.abs(bytes))} GiB`;
}

/** An element with attributes and children; text is text, never markup. `on…` are listeners. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== ""));
  return made;
}

/** The same for SVG. */
export function draw(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

/** A sample of a kind's colour and pattern. */
export function swatch(kind) {
  const box = draw("rect", { width: 16, height: 16, rx: 2, fill: `url(#p-${kind})` });
  return draw("svg", { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" }, box);
}

/** HTML that the service made, as nodes. */
export function fragment(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content;
}

/** A key as people say it: training.batch_size is batch size. */
export function spoken(path) {
  return path.slice(path.indexOf(".") + 1).replace(/[_.]/g, " ");
}

/** A run's model in a word or two. */
export function modelName({ model = {} }) {
  if (model.name) return model.name;
  return model.num_parameters ? `${model.num_parameters} parameters` : "own model";
}

function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** The command line that calculates a run. A model without a name, and what is not modelled of a
    command, need the run file. */
export function command(run) {
  const verb = run.inference ? "infer" : "calculate";
  const pairs = settingsOf(run);
  const given = new Map(pairs);
  const name = run.model?.name;
  if (name === undefined || given.has("model.config") || run.limits) return `gpu-mem-calc ${verb} --config run.json`;
  const words = ["gpu-mem-calc", verb, ...(run.inference ? [name] : ["--preset", name])];
  if (given.has("inference.engine")) words.push("--engine", given.get("inference.engine"));
  for (const [path, text] of pairs) {
    if (path !== "model.name" && path !== "inference.engine") words.push("--set", `${path}=${text}`);
  }
  return words.map(quoted).join(" ");
}

let region = null;
let waiting = 0;

/** Tells screen readers something, once it has settled. */
export function say(text) {
  if (region === null) {
    region = make("p", { class: "hidden", role: "status", "aria-live": "polite", id: "said" });
    document.body.append(region);
  }
  clearTimeout(waiting);
  waiting = setTimeout(() => (region.textContent = text), SETTLED);
}

/** Copies a text and says so; where the browser forbids it, the text is shown to be copied. */
export async function copy(text, what, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    window.prompt(`Copy the ${what}:`, text);
    return;
  }
  say(`The ${what} is copied.`);
  flash(button, "Copied");
}

/** A button says for a moment what it did. */
export function flash(button, words) {
  const label = button.querySelector(".label") ?? button;
  if (label.dataset.before !== undefined) return;
  label.dataset.before = label.textContent;
  label.textContent = words;
  setTimeout(() => {
    label.textContent = label.dataset.before;
    delete label.dataset.before;
  }, 1600);
}
