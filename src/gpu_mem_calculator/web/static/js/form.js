/* The form: which model, which cards, and every other key of the run file that applies. */

import { cardPicker, modelPicker } from "./basics.js";
import { greyChoices } from "./choices.js";
import { controlFor, SLIDERS, Stepper } from "./controls.js";
import { loadFacts, longest } from "./facts.js";
import { startPaste } from "./paste.js";
import { methodSwitch, recipeSwitch } from "./recipes.js";
import { assigned, keyOf } from "./problems.js";
import { apply, current, get, linkProblems, notes, reset, set, splits, subscribe, VIEWS } from "./state.js";
import { make } from "./words.js";

const TITLES = {
  engine: "Framework options", training: "Training options", parallelism: "Parallelism", inference: "Serving options",
  hardware: "Hardware", model: "Model sizes",
};
const UNSET = { model: "the model’s", "training.lora.r": "no LoRA" }; // words where nothing is set
const ENGINE = { train: "engine.type", serve: "inference.engine" };
const COUNT = "hardware.num_gpus";
const RANKS = "inference.tensor_parallel_size"; // a server's number of GPUs, where its split is given
const LORA = "training.lora";
/* What is always in sight, in this order, of a view or an engine. */
const FIRST = {
  train: ["engine.zero_stage", "engine.sharding_strategy", "training.batch_size", "training.seq_len"],
  serve: ["inference.max_seq_len", "inference.batch_size"],
  transformers: ["inference.batch_size", "inference.prompt_len", "inference.new_tokens"],
};
const PLACED = ["model.name", "model.config", "hardware.gpu", COUNT, ...Object.values(ENGINE)];
const WIDE = matchMedia("(min-width: 1100px)");

let facts = null; // of the service, see facts.js
let problems = []; // the service's sentences about the current set-up
let held = {}; // the settings of the last run that was calculated, also those that it leaves open
let drawn = ""; // which fields are on the page
let controls = new Map(); // path -> Control
const page = {}; // the form's parts

/** Build the form, once its facts are here. */
export async function startForm() {
  const form = document.getElementById("form");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("toggle", () => facts && page.rest && show(), true); // what opens is asked about
  document.addEventListener("problems", (event) => showProblems(event.detail.problems));
  document.addEventListener("look", (event) => hold(event.detail.settings));
  page.problems = make("div", { class: "problems", role: "status" });
  form.append(page.problems);
  try {
    facts = await loadFacts();
  } catch (error) {
    const again = make("button", { type: "button", class: "button", onclick: () => location.reload() }, "Try again");
    page.problems.replaceChildren(...(error.problems ?? [error.message]).map((one) => make("p", {}, one)), again);
    return;
  }
  document.getElementById("version").textContent = `gpu-mem-calculator ${facts.version}`;
  build(form);
  subscribe(show);
  show();
}

function hold(settings) {
  held = settings;
  if (facts) show();
}

function showProblems(sentences) {
  problems = sentences;
  if (facts) show();
}

function build(form) {
  page.model = modelPicker(facts);
  page.card = cardPicker(facts);
  const paste = make("button", { type: "button", class: "button quiet paste", "aria-haspopup": "dialog", onclick: startPaste() }, "Paste a command, a file, a log or a name");
  page.count = make("div", { class: "count" });
  page.first = make("div", { class: "first" });
  page.main = make("div", { class: "fields" });
  page.sections = make("div", { class: "sections" });
  const over = make("button", { type: "button", class: "button", onclick: reset }, "Start over");
  const explains = make("input", { type: "checkbox", onchange: () => form.classList.toggle("with-meanings", explains.checked) });
  const foot = make("div", { class: "form-foot" }, make("label", {}, explains, "Explain every setting"), over);
  page.rest = make("details", { class: "rest" }, make("summary", {}, "All settings"), page.main, page.sections, foot);
  page.rest.open = WIDE.matches;
  WIDE.addEventListener("change", () => (page.rest.open ||= WIDE.matches));
  const cards = make("div", { class: "cards" }, page.card.element, page.count);
  const about = { engineNow, toEngine: (name) => toEngine(ENGINE.train, name), titleOf: (path) => fieldOf(path).label, switches: () => page.switches };
  page.switches = [methodSwitch(facts, about), recipeSwitch(facts, about)];
  page.read = make("p", { class: "hint read" });
  form.append(make("div", { class: "basics" }, page.model.element, make("div", { class: "from" }, paste, page.read), cards, page.switches.map((one) => one.element), page.first), page.rest);
}

/* ---- which fields ---- */

const fieldOf = (path) => facts.fields.find((field) => field.path === path);
const engineField = () => fieldOf(ENGINE[current().view]);

/* The engine by its own name, whichever was written. */
function engineNow() {
  const said = get(ENGINE[current().view]) ?? engineField().default;
  return facts.engines.find((one) => one.name === said || one.aliases.includes(said))?.name ?? said;
}

function has(field, engine) {
  return !field.defaults || engine in field.defaults;
}

/* A field as the engine has it; LoRA's other keys come when there is LoRA. */
function applies(field) {
  if (!VIEWS[current().view].sections.includes(field.section) || !has(field, engineNow())) return false;
  return !field.path.startsWith(`${LORA}.`) || field.path === `${LORA}.r` || get(LORA) !== undefined;
}

function countField() {
  const ranks = fieldOf(RANKS);
  if (current().view === "train" || engineNow() === "llamacpp") return fieldOf(COUNT);
  if (!has(ranks, engineNow())) return null;
  return splits(current().run) ? { ...ranks, label: "GPUs (tensor parallel)" } : fieldOf(COUNT);
}

function rebuild() {
  const focused = document.activeElement?.id;
  const open = new Set([...page.sections.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const counted = countField();
  const shown = facts.fields.filter((field) => applies(field) && !PLACED.includes(field.path) && field.path !== counted?.path);
  const names = FIRST[engineNow()] ?? FIRST[current().view];
  const first = names.map(fieldOf).filter((field) => shown.includes(field));
  const main = shown.filter((field) => field.level === "main" && !first.includes(field));
  controls = new Map();
  page.count.replaceChildren(counted ? made(counted, { Kind: Stepper }) : "");
  page.first.replaceChildren(made({ ...engineField(), plain: true }), ...first.map((field) => made(field, { moved: true })));
  page.main.replaceChildren(...main.map((field) => made(field)));
  const rest = shown.filter((field) => field.level !== "main" && !first.includes(field));
  page.sections.replaceChildren(...Object.keys(TITLES).map((name) => section(name, rest, open)).filter(Boolean));
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

function made(field, { Kind, moved } = {}) {
  const choices = field.choices?.filter((one) => !one.engines || one.engines.includes(engineNow()));
  const own = { ...field, choices, unset: UNSET[field.path] ?? UNSET[field.section] };
  const changed = (value) => change(field, value);
  const control = Kind ? new Kind(own, changed) : controlFor(own, changed, moved);
  controls.set(field.path, control);
  return control.element;
}

function section(name, fields, open) {
  const mine = fields.filter((field) => field.section === name);
  if (!mine.length) return null;
  const [more, rare] = ["more", "expert"].map((level) => mine.filter((field) => field.level === level).map((field) => made(field)));
  if (!more.length) return group(name, TITLES[name], rare, open);
  const last = rare.length ? [group(`${name} rare`, "Rarely changed", rare, open)] : [];
  return group(name, TITLES[name], [...more, ...last], open);
}

function group(key, title, children, open) {
  const summary = make("summary", {}, title, make("span", { class: "changed" }));
  const made = make("details", { class: "group", "data-key": key }, summary, make("div", { class: "fields" }, children));
  made.open = open.has(key);
  return made;
}

/* ---- changing and showing ---- */

function change(field, value) {
  if (field.path === ENGINE[current().view]) changeEngine(field.path, value);
  else set(field.path, value);
}

function changeEngine(path, value) {
  apply(toEngine(path, value ?? fieldOf(path).default));
}

/* The settings that change the engine; options that the new one does not have are removed. */
function toEngine(path, engine) {
  const sections = VIEWS[current().view].sections;
  const left = facts.fields.filter((one) => sections.includes(one.section) && !has(one, engine) && get(one.path) !== undefined);
  const foreign = facts.fields.filter((one) => refuses(one, engine));
  return [...left, ...foreign].map((one) => `${one.path}=null`).concat(`${path}=${JSON.stringify(engine)}`);
}

/* Whether a value that is set is another engine's. */
function refuses(field, engine) {
  const value = get(field.path);
  const choice = value === undefined ? undefined : field.choices?.find((one) => one.value === value);
  return Boolean(choice?.engines) && !choice.engines.includes(engine);
}

function show() {
  const wanted = [current().view, engineNow(), get(LORA) !== undefined, splits(current().run)].join(" ");
  if (drawn !== wanted) {
    drawn = wanted;
    rebuild();
  }
  const said = assigned(problems, [...controls.keys(), "model", "hardware.gpu"]);
  const words = (path) => (said.get(path) ?? []).join(" ");
  const tokens = longest(get("model") ?? {}, facts.presets, show);
  page.model.update(words("model"), tokens);
  page.card.update(words("hardware.gpu"));
  for (const one of page.switches) {
    one.element.hidden = current().view !== "train";
    if (!one.element.hidden) one.show();
  }
  readFrom();
  for (const [path, control] of controls) {
    const shown = [get(path), fallback(control.field, tokens), words(path)];
    const key = JSON.stringify([...shown, tokens]);
    if (control.key === key) continue;
    control.key = key;
    control.limit?.(tokens);
    control.show(...shown);
  }
  tell([...linkProblems(), ...(said.get("") ?? [])]);
  greyChoices(controls, page.switches.filter((one) => !one.element.hidden), settingsFor);
  for (const one of page.sections.querySelectorAll(".group")) mark(one);
}

/* Where the set-up was read from, as long as it is that. */
function readFrom() {
  const [first, ...more] = notes();
  if (page.readNow === first) return;
  page.readNow = first;
  const assumptions = make("a", { href: "#h-remarks", onclick: (event) => (event.preventDefault(), document.getElementById("h-remarks").scrollIntoView({ block: "start" })) }, "Assumptions");
  page.read.replaceChildren(...(first ? [make("span", {}, first[0].toUpperCase() + first.slice(1)), ". ", assumptions, more.length ? `: ${more.length}` : ""] : []));
}

/* The settings that a choice changes. */
function settingsFor(path, value) {
  return path === ENGINE[current().view] ? toEngine(path, value) : [`${path}=${JSON.stringify(value)}`];
}

/* What holds where nothing is set: what the calculated run has, else the engine's default; null
   where that is not known. */
function fallback(field, tokens) {
  if (held[field.path] !== undefined && get(field.path) === undefined) return held[field.path];
  if (field.path === COUNT) return get("parallelism") || get("hardware.num_nodes") ? null : 1;
  if (field.section === "model" || (field.path === `${LORA}.r` && get(LORA) === undefined)) return null;
  const own = field.defaults ? field.defaults[engineNow()] : field.default;
  return own ?? (SLIDERS[field.path]?.whole ? tokens : null) ?? null;
}

/* Sentences above the form. A setting that has no place in it can be taken away here. */
function tell(sentences) {
  if (page.told === sentences.join("\n")) return;
  page.told = sentences.join("\n");
  page.problems.replaceChildren(...sentences.map((one) => {
    const key = keyOf(one);
    if (!key || get(key) === undefined || controls.has(key)) return make("p", {}, one);
    return make("p", {}, one, make("button", { type: "button", class: "button", onclick: () => set(key, undefined) }, `Remove ${key}`));
  }));
}

/* How many settings of a group are changed; one with a problem opens. */
function mark(group) {
  const changed = group.querySelectorAll(".field.set").length;
  const badge = group.querySelector(".changed");
  const text = changed ? `${changed} set` : "";
  if (badge.textContent !== text) badge.textContent = text;
  if (group.querySelector("[aria-invalid]")) group.open = true;
}
