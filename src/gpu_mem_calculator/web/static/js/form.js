/* The form: which model, which cards, and every other key of the run file that applies. */

import * as api from "./api.js";
import { cardPicker, modelPicker } from "./basics.js";
import { cardOptions, modelOptions, presetNamed } from "./catalogue.js";
import { controlFor, SLIDERS, Stepper } from "./controls.js";
import { startPaste } from "./paste.js";
import { assigned, keyOf } from "./problems.js";
import { apply, current, get, linkProblem, reset, set, subscribe, VIEWS } from "./state.js";
import { make } from "./words.js";

const TITLES = {
  model: "Sizes of the model", hardware: "Hardware", training: "Training", parallelism: "Parallelism",
  engine: "Engine", inference: "Server",
};
const ENGINE = { train: "engine.type", serve: "inference.engine" };
const PICKED = ["model.name", "model.config", "hardware.gpu", ...Object.values(ENGINE)]; // have a place of their own
const WIDE = matchMedia("(min-width: 1100px)");

let facts = null; // {presets, gpus, fields, models, cards}
let problems = []; // the service's sentences about the current set-up
let drawn = ""; // which fields are on the page: a view and an engine
let controls = new Map(); // path -> Control
const page = {}; // the form's parts

/** Build the form, once its facts are here. */
export async function startForm() {
  const form = document.getElementById("form");
  form.addEventListener("submit", (event) => event.preventDefault());
  page.problems = make("div", { class: "problems", role: "status", "aria-live": "polite" });
  form.append(page.problems);
  document.addEventListener("problems", (event) => showProblems(event.detail.problems));
  await load();
  if (!facts) return;
  build(form);
  subscribe(show);
  show();
}

/** Say what the service finds wrong with the current set-up; an empty list takes it away. */
export function showProblems(sentences) {
  problems = sentences;
  if (facts) show();
}

async function load() {
  try {
    const found = await Promise.all(["/api/presets", "/api/gpus", "/api/form"].map((path) => api.get(path)));
    facts = { presets: found[0].presets, gpus: found[1].gpus, fields: found[2].fields };
    facts.models = modelOptions(facts.presets);
    facts.cards = cardOptions(facts.gpus);
  } catch (error) {
    const again = make("button", { type: "button", class: "button", onclick: () => location.reload() }, "Try again");
    page.problems.replaceChildren(...(error.problems ?? [error.message]).map((one) => make("p", {}, one)), again);
  }
}

function build(form) {
  const paste = startPaste();
  page.model = modelPicker(facts);
  page.card = cardPicker(facts);
  const open = make("button", { type: "button", class: "button quiet paste", "aria-haspopup": "dialog", onclick: paste }, "Paste config.json or a run file");
  page.count = make("div", { class: "count" });
  page.first = make("div", { class: "first" });
  page.main = make("div", { class: "fields" });
  page.sections = make("div", { class: "sections" });
  const over = make("button", { type: "button", class: "button quiet", onclick: reset }, "Start over");
  page.rest = make("details", { class: "rest" }, make("summary", {}, "All settings"), page.main, page.sections, over);
  page.rest.open = WIDE.matches;
  WIDE.addEventListener("change", () => (page.rest.open = WIDE.matches || page.rest.open));
  const cards = make("div", { class: "cards" }, page.card.element, page.count);
  form.append(make("div", { class: "basics" }, page.model.element, open, cards, page.first), page.rest);
}

/* ---- which fields ---- */

const engineOf = () => get(ENGINE[current().view]) ?? engineField().default;
const engineField = () => facts.fields.find((field) => field.path === ENGINE[current().view]);

function applies(field) {
  const known = VIEWS[current().view].sections.includes(field.section);
  return known && (!field.engines || field.engines.includes(engineOf()));
}

/* How many cards: a server's own parallel size, where it has one. */
function countPath() {
  const own = "inference.tensor_parallel_size";
  const shared = current().view === "serve" && facts.fields.some((field) => field.path === own && applies(field));
  return shared ? own : "hardware.num_gpus";
}

function rebuild() {
  const focused = document.activeElement?.id;
  const open = new Set([...page.sections.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  controls = new Map();
  const counted = countPath();
  const fields = facts.fields.filter((field) => applies(field) && !PICKED.includes(field.path));
  const shown = fields.filter((field) => field.path !== counted && !(counted !== "hardware.num_gpus" && field.path === "hardware.num_gpus"));
  const main = shown.filter((field) => field.level === "main");
  const engine = engineField();
  page.count.replaceChildren(made(facts.fields.find((field) => field.path === counted), (...args) => new Stepper(...args)));
  page.first.replaceChildren(made(engine), ...main.filter((field) => SLIDERS[field.path]).map((field) => made(field)));
  page.main.replaceChildren(...main.filter((field) => !SLIDERS[field.path]).map((field) => made(field)));
  page.sections.replaceChildren(...VIEWS[current().view].sections.map((name) => section(name, shown, open)).filter(Boolean));
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

function made(field, maker = controlFor) {
  const control = maker(field, (value) => change(field, value), field.level === "main");
  controls.set(field.path, control);
  return control.element;
}

function section(name, fields, open) {
  const mine = fields.filter((field) => field.section === name && field.level !== "main");
  const more = mine.filter((field) => field.level === "more").map((field) => made(field));
  const expert = mine.filter((field) => field.level === "expert").map((field) => made(field));
  if (!mine.length) return null;
  const rare = expert.length ? group(`${name}-rare`, more.length ? "Rarely changed" : "", expert, open) : null;
  return group(name, TITLES[name], more.length ? [...more, rare].filter(Boolean) : expert, open);
}

function group(key, title, children, open) {
  const count = make("span", { class: "changed" });
  const made = make("details", { class: "group", "data-key": key }, make("summary", {}, title, count), make("div", { class: "fields" }, children));
  made.open = open.has(key);
  return made;
}

/* ---- changing and showing ---- */

function change(field, value) {
  if (field.path !== ENGINE[current().view]) set(field.path, value);
  else changeEngine(field, value);
}

/* Another engine: options that it does not have are left behind. */
function changeEngine(field, value) {
  const engine = value ?? field.default;
  const strange = facts.fields.filter((one) => one.engines && !one.engines.includes(engine) && get(one.path) !== undefined);
  const left = strange.filter((one) => VIEWS[current().view].sections.includes(one.section));
  apply([`${field.path}=${JSON.stringify(value ?? null)}`, ...left.map((one) => `${one.path}=null`)]);
}

function show() {
  const wanted = `${current().view} ${engineOf()}`;
  if (drawn !== wanted) {
    drawn = wanted;
    rebuild();
  }
  const said = assigned(problems, [...controls.keys(), "model", "hardware.gpu"]);
  const words = (path) => (said.get(path) ?? []).join(" ");
  page.model.update(words("model"));
  page.card.update(words("hardware.gpu"));
  const row = presetNamed(facts.presets, get("model.name"));
  for (const [path, control] of controls) {
    control.limit?.(get("model.max_seq_len") ?? row?.max_seq_len ?? null);
    control.show(get(path), fallbackOf(control.field, row), words(path));
  }
  page.problems.replaceChildren(...[linkProblem(), ...(said.get("") ?? [])].filter(Boolean).map(told));
  for (const one of page.sections.querySelectorAll(".group")) mark(one);
}

/* What holds where nothing is set: the engine's default, or the model's own limit. */
function fallbackOf(field, row) {
  const own = field.defaults?.[engineOf()] ?? field.default;
  return own ?? (SLIDERS[field.path]?.tokens ? row?.max_seq_len : null) ?? null;
}

/* A sentence above the form. A setting that has no place in it can be taken away here. */
function told(sentence) {
  const key = keyOf(sentence);
  if (!key || get(key) === undefined) return make("p", {}, sentence);
  const away = make("button", { type: "button", class: "button", onclick: () => set(key, undefined) }, `Remove ${key}`);
  return make("p", {}, sentence, away);
}

/* How many settings of a group are changed; one with a problem opens. */
function mark(group) {
  const changed = group.querySelectorAll(".field.set").length;
  const text = changed ? `${changed} set` : "";
  const badge = group.querySelector(".changed");
  if (badge.textContent !== text) badge.textContent = text;
  if (group.querySelector("[aria-invalid]")) group.open = true;
}
