/* Up to four set-ups side by side, on one scale, with only the keys that differ. */

import { get, post } from "./api.js";
import { settingsOf, valueAt } from "./link.js";
import { recipeOf } from "./recipes.js";
import { bare, NONE, settingWords, titled } from "./setting_words.js";
import { activate, active, removeSetup, request, setups, subscribe, VIEWS } from "./state.js";
import { count, draw, fragment, gib, make, modelName, say, spoken, swatch } from "./words.js";

const WIDTH = 400; // asked for; what is drawn here is drawn anew on the common scale
const [WIDE, TALL] = [240, 90]; // of the small picture
const KEPT = 32; // answers
const MOST_NAMED = 3; // differences that a name has
const RECIPES = { full: "All weights", lora: "LoRA", qlora: "QLoRA" };
const BY_RECIPE = /^training\.(lora\b|quantization|double_quant|upcast_unquantized|precision|autocast|activation_checkpointing|optimizer)/;
const FIRST = [ // what a name says first
  "view", "model.name", "recipe", "engine.type", "inference.engine", "engine.zero_stage", "hardware.gpu", "hardware.num_gpus",
  "training.batch_size", "training.seq_len", "inference.quantization",
];
const answers = new Map(); // a run's text -> {look} or {error}
let place = null;
let form = null; // the run file's keys and engines; asked for with the first comparison

/** Where the comparison is shown; it is empty for a single set-up. */
export function mountCompare(element) {
  place = element;
  subscribe(show);
  show();
}

/** A look that was asked for anyway. */
export function noteLook(setup, look) {
  keep(JSON.stringify(request(setup)), { look });
  if (setups().length > 1) show();
}

function keep(key, answer) {
  answers.delete(key);
  answers.set(key, answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
}

async function fetchLook(setup, key) {
  keep(key, {});
  try {
    keep(key, { look: await post("/api/look", request(setup), { query: { width: WIDTH, replay: true } }) });
  } catch (error) {
    keep(key, { error });
  }
  show();
}

async function fetchForm() {
  form = { fields: [], engines: [] };
  try {
    form = await get("/api/form");
    show();
  } catch {
    form = null; // the keys themselves will do, and the next change asks again
  }
}

function show() {
  const all = setups();
  place.hidden = all.length < 2;
  if (place.hidden) {
    place.replaceChildren();
    return;
  }
  if (form === null) fetchForm();
  const found = all.map((setup, i) => {
    const key = JSON.stringify(request(setup));
    if (!answers.has(key) && i !== active()) fetchLook(setup, key);
    return answers.get(key) ?? {};
  });
  const looks = found.map((one) => one.look).filter(Boolean);
  const scale = Math.max(1, ...looks.flatMap((one) => [one.result.gpu_memory_bytes, ...one.columns.map((c) => c.bytes)]));
  const keys = differing(all);
  const names = namesOf(all, keys);
  const totals = found.map(({ look }) => (look && !look.result.serving && look.result.needs_bytes !== null ? look.result.total_memory_per_gpu_gb : null));
  const cards = all.map((_, i) => card(i, names[i], found[i], scale, keys, totals));
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const title = make("h2", { id: "h-compare", class: "hidden" }, `${all.length} set-ups side by side`);
  place.replaceChildren(title, make("div", { class: `compared of-${all.length}` }, cards));
  if (focused) place.querySelector(`[data-key="${focused}"]`)?.focus();
}

/** The paths whose values are not the same in all set-ups, with each one's words. */
export function differing(all) {
  const each = all.map((setup) => new Map(settingsOf(request(setup))));
  const paths = new Set(each.flatMap((one) => [...one.keys()]));
  return [...paths]
    .map((path) => [path, each.map((one, i) => settingWords(form, all[i], path, one.get(path)))])
    .filter(([, values]) => new Set(values.map(bare)).size > 1);
}

/* What each set-up is called: of what differs, the first that tells them apart. What a recipe sets
   is said by its name. */
export function namesOf(all, keys) {
  const recipes = all.map(({ view, run }) => (view === "train" ? RECIPES[recipeOf((path) => valueAt(run, path))] : NONE));
  const set = (key) => new Set(recipes).size > 1 && BY_RECIPE.test(key);
  const order = (path) => (FIRST.indexOf(path) + FIRST.length + 1) % (FIRST.length + 1);
  const aspects = [["view", all.map(({ view }) => VIEWS[view].title)], ["recipe", recipes], ...keys.filter(([path]) => !set(path))]
    .filter(([, values]) => new Set(values).size > 1)
    .sort(([one], [other]) => order(one) - order(other));
  const names = all.map(() => []);
  for (const [path, values] of aspects) {
    if (names[0].length + 1 > MOST_NAMED || new Set(names.map(String)).size === all.length) break;
    values.forEach((value, i) => names[i].push(aspectWords(path, bare(value), keys)));
  }
  return names.map((words, i) => words.filter(Boolean).join(", ") || `${VIEWS[all[i].view].title} ${modelName(all[i].run)}`);
}

function aspectWords(path, value, keys) {
  if (value === NONE || value === "default") return "";
  if (path === "hardware.num_gpus") return `${value} GPU${value === "1" ? "" : "s"}`;
  return /^[\d,.]+$|^o[nf]+$/.test(value) ? `${titled(form, path, keys) ?? spoken(path)} ${value}` : value;
}

function card(index, name, { look, error }, scale, keys, totals) {
  const edited = index === active();
  const title = `${index + 1}: ${name}`;
  const pick = make(
    "button",
    { type: "button", class: "tab", "aria-pressed": String(edited), "data-key": `pick-${index}`, onclick: () => activate(index) },
    make("span", { class: "tab-name" }, title),
    make("span", { class: "tab-state" }, edited ? "editing" : "edit"),
  );
  const remove = make(
    "button",
    { type: "button", class: "button quiet remove", "aria-label": `Remove set-up ${index + 1}`, onclick: () => removed(index) },
    "✕",
  );
  const head = make("div", { class: "tabs" }, pick, remove);
  const parts = look ? shown(look, scale, beside(totals, index)) : [make("p", { class: "soft wide" }, error ? error.message : "…")];
  return make("article", { class: edited ? "one edited" : "one", "aria-label": `Set-up ${index + 1}` }, head, ...parts, changes(keys, index));
}

function removed(index) {
  removeSetup(index);
  queueMicrotask(() => place.querySelector('.tab[aria-pressed="true"]')?.focus());
  say(`Set-up ${index + 1} is removed. Undo brings it back.`);
}

/* What a set-up needs beside the first one, and whether it is the least of all. */
function beside(totals, index) {
  const known = totals.filter((one) => one !== null);
  const mine = totals[index];
  if (mine === null || known.length < 2) return "";
  const more = Number(mine.toFixed(1)) - Number((totals[0] ?? mine).toFixed(1)); // as the figures are shown
  const least = mine === Math.min(...known) && known.some((one) => one !== mine) ? "least" : "";
  const apart = index && totals[0] !== null ? `${Math.abs(more).toFixed(1)} GiB ${more < 0 ? "less" : "more"} than set-up 1` : "";
  return [apart, least].filter(Boolean).join(", ");
}

function shown(look, scale, apart) {
  const verdict = fragment(look.parts.verdict).querySelector(".verdict");
  const tone = ["fits", "unsure", "about", "fails"].find((name) => verdict.classList.contains(name));
  const words = make(
    "div",
    { class: `brief ${tone}` },
    make("p", { class: "needs" }, verdict.querySelector(".needs").textContent.replace(" per GPU", "")),
    make("p", { class: "says" }, verdict.querySelector(".says").textContent),
    apart && make("p", { class: "apart" }, apart),
  );
  return [words, numbers(look.result), small(look, scale), kinds(look, scale)];
}

function numbers(result) {
  const size = (bytes) => (bytes === null ? "…" : `${gib(bytes)} GiB`);
  const rows = result.serving
    ? [
        ["KV cache", size(result.serving.kv_pool_bytes)],
        ["tokens", count(result.serving.kv_tokens)],
        ["users", `${count(result.serving.users)} at ${count(result.serving.users_context)} tokens`],
        ["nvidia-smi", size(result.device_bytes)],
      ]
    : [
        ["allocated", size(result.allocated_bytes)],
        ["reserved", size(result.reserved_bytes)],
        ["torch needs", size(result.needs_bytes)],
        ["nvidia-smi", size(result.device_bytes)],
      ];
  return make("dl", { class: "four" }, rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/* The step in small, as high as the others' bytes allow. */
function small(look, scale) {
  const { columns, result } = look;
  const step = WIDE / columns.length;
  const high = (bytes) => (TALL * bytes) / scale;
  const boxes = columns.flatMap((one, i) => {
    let level = 0;
    return one.slices.map((part) => {
      level += part.bytes;
      const across = { x: (i * step).toFixed(2), width: (step * 0.88).toFixed(2) };
      const up = { y: (TALL - high(level)).toFixed(2), height: high(part.bytes).toFixed(2) };
      return draw("rect", { ...across, ...up, fill: `url(#p-${part.kind})` });
    });
  });
  const y = (TALL - high(result.gpu_memory_bytes)).toFixed(2);
  const top = look.peak;
  const said = `Highest at ${columns[top].title}: ${gib(columns[top].bytes)} GiB, limit ${gib(result.gpu_memory_bytes)} GiB`;
  const picture = draw(
    "svg",
    { class: "mini", viewBox: `0 -4 ${WIDE} ${TALL + 5}`, role: "img", "aria-label": said, preserveAspectRatio: "none" },
    boxes,
    draw("path", { class: "limit", d: `M0 ${y}H${WIDE}` }),
  );
  return make("div", { class: "mini-holder" }, picture, make("p", { class: "soft" }, `peak: ${columns[top].title}`));
}

/* The peak as one bar, and each kind's size. */
function kinds(look, scale) {
  const slices = look.columns[look.peak].slices;
  let start = 0;
  const boxes = slices.map((part) => {
    const from = start;
    start += part.bytes;
    return draw("rect", { x: `${(100 * from) / scale}%`, width: `${(100 * part.bytes) / scale}%`, height: 14, fill: `url(#p-${part.kind})` });
  });
  const x = `${(100 * look.result.gpu_memory_bytes) / scale}%`;
  const end = draw("line", { class: "limit", x1: x, x2: x, y1: 0, y2: 14 });
  const bar = draw("svg", { class: "bar", "aria-hidden": "true" }, boxes, end);
  const rows = slices.map((part) =>
    make("li", {}, swatch(part.kind), make("span", { class: "name" }, look.titles[part.kind]), make("span", { class: "figure" }, gib(part.bytes))),
  );
  return make("div", { class: "peak-kinds" }, bar, make("ul", { class: "rows" }, rows));
}

function changes(keys, index) {
  if (!keys.length) return make("p", { class: "soft differs" }, "The set-ups are equal. Change a setting.");
  const rows = keys.map(([path, values]) => {
    const text = values[index];
    const common = text === NONE || values.filter((one) => bare(one) === bare(text)).length > values.length / 2;
    return make("div", { class: common ? "" : "own", title: path }, make("dt", {}, titled(form, path, keys) ?? spoken(path)), make("dd", {}, text));
  });
  return make("dl", { class: "differs" }, rows);
}
