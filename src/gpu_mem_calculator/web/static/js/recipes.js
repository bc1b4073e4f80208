/* How and what is trained: a method (SFT, DPO, GRPO), and all weights, LoRA or QLoRA. Each sets what
   people usually set, and another framework where the one chosen does not have it. */

import { apply, get } from "./state.js";
import { make, say } from "./words.js";

const LORA = "training.lora";
const RANK = "training.lora.r"; // stays as it is when the recipe changes
const QUANTIZATION = "training.quantization";
const RANKS = "parallelism.data_parallel_size"; // follows from the GPUs again when the engine changes
const OPTIMIZER = "training.optimizer";
const KERNEL = "training.optimizer_implementation"; // which another optimizer may not have
const BATCH = "training.batch_size";
const LENGTH = "training.seq_len";
const GENERATION = "training.generation"; // whose prompt and completion are the sequence

/** The recipe of a set-up, the current one if no function gives another one's settings. */
export function recipeOf(at = get) {
  if (at(LORA) === undefined) return "full";
  return at(QUANTIZATION) === undefined ? "lora" : "qlora";
}

/** The choice of a recipe; see `rowSwitch`. */
export function recipeSwitch({ recipes, engines }, form) {
  const kernel = (row, settings) => ((settings[OPTIMIZER] ?? get(OPTIMIZER)) === get(OPTIMIZER) ? [] : [`${KERNEL}=null`]);
  return rowSwitch({ name: "recipe", legend: "What do you train", rows: recipes, now: () => recipeOf(), engines, more: kernel }, form);
}

/** The choice of a method. A pair of answers is two sequences, and completions have a length of
    their own. */
export function methodSwitch({ methods, engines }, form) {
  const has = ({ marks, engines: by }) => marks.every((key) => get(key) !== undefined && (typeof get(key) !== "string" || get(key) === by[form.engineNow()].settings[key]));
  const now = () => methods.filter(has).sort((a, b) => b.marks.length - a.marks.length)[0].name;
  const sequences = (name) => methods.find((one) => one.name === name).sequences;
  const lengths = (row, settings) => {
    const batch = get(BATCH) ?? 1;
    const scaled = Math.max(sequences(row.name), Math.round((batch * sequences(row.name)) / sequences(now())));
    const { prompt, new_tokens: more } = get(GENERATION) ?? {};
    const ends = prompt && more && !settings[GENERATION] ? prompt + more : get(LENGTH);
    return [...(Number.isInteger(batch) && scaled !== batch ? [`${BATCH}=${scaled}`] : []), `${LENGTH}=${settings[GENERATION] ? null : (ends ?? null)}`];
  };
  return rowSwitch({ name: "method", legend: "By which method", rows: methods, now, engines, more: lengths }, form);
}

/* Radio buttons, one for each row. `engineNow()` gives the engine, `toEngine(name)` the settings that
   change it, `titleOf(path)` what the form calls a key, `switches()` all of them. show() draws the state; choices() are the
   settings of each input that is not chosen; refuse() greys inputs, a sentence by input. */
function rowSwitch({ name, legend, rows, now, engines, more = () => [] }, { engineNow, toEngine, titleOf, switches }) {
  const engineTitle = (engine) => engines.find((one) => one.name === engine).title;
  const keys = [...new Set(rows.flatMap((one) => Object.values(one.engines).flatMap((each) => Object.keys(each.settings))))];
  const hint = make("p", { class: "hint", id: `${name}-hint` });
  const closed = make("p", { class: "hint" }); // why some cannot be chosen
  const moved = make("p", { class: "hint moved", role: "status", hidden: true });
  let before = null; // the engine that a row replaced
  let note = null; // that the last row changed the engine

  const wantedBy = () => (note?.engine === engineNow() ? (before ?? engineNow()) : engineNow());

  const rowNow = () => rows.find((one) => one.name === now());
  const runsOn = (engine) => rowNow().engines[engine].engine === engine;

  function chosen(settings) {
    const rank = get(RANK);
    return Object.entries(settings).map(([key, value]) => `${key}=${JSON.stringify(key === RANK && rank ? rank : value)}`);
  }

  /* What the row that is chosen has on another engine. */
  function moves(engine) {
    const row = rowNow();
    const own = new Set(Object.values(row.engines).flatMap((one) => Object.keys(one.settings)));
    return [...[...own].map((key) => `${key}=null`), ...chosen(row.engines[engine].settings)];
  }

  /* The settings of a row, and the engine that it runs on: the one that was replaced again, where
     the other switch's row runs on it. */
  function settingsOf(row) {
    const others = switches().filter((one) => one.element !== element);
    const back = row.engines[wantedBy()].engine;
    const from = others.every((one) => one.runsOn(back)) ? wantedBy() : engineNow();
    const { engine, settings } = row.engines[from];
    const change = engine === engineNow() ? [] : [`${RANKS}=null`, ...toEngine(engine), ...others.flatMap((one) => one.moves(engine))];
    return { engine, all: [...keys.map((key) => `${key}=null`), ...more(row, settings), ...change, ...chosen(settings)] };
  }

  function choose(row) {
    const [from, wanted] = [engineNow(), wantedBy()];
    const { engine, all } = settingsOf(row);
    before = engine === wanted ? null : wanted;
    const needs = before ? `${row.title} is not modelled with ${engineTitle(before)}, so the framework is now ${engineTitle(engine)}.` : `The framework is ${engineTitle(engine)} again.`;
    if (engine !== from) note = { engine, row: row.name, text: needs };
    else if (note) note.row = null;
    apply(all);
    say(`${row.title} is set. ${engine === from ? "" : needs} Undo takes it back.`);
  }

  const inputs = rows.map((row) => {
    const input = make("input", { type: "radio", name, value: row.name, "aria-describedby": `${name}-hint`, onchange: () => choose(row) });
    return [input, make("label", {}, input, row.title)];
  });
  const box = make("div", { class: "switch" }, inputs.map(([, label]) => label));
  const element = make("fieldset", { class: `rows ${name}` }, make("legend", {}, legend), box, hint, closed, moved);

  /* What the row means; or which of its settings are changed. */
  function words(row) {
    const { settings, meaning } = row.engines[engineNow()];
    const changed = Object.keys(settings).filter((key) => key !== RANK && JSON.stringify(get(key)) !== JSON.stringify(settings[key]));
    return changed.length ? `With other settings than usual: ${changed.map(titleOf).join(", ")}.` : sentence(meaning);
  }

  const show = () => {
    const row = rowNow();
    for (const [input] of inputs) input.checked = input.value === row.name;
    hint.textContent = words(row);
    moved.hidden = note?.row !== row.name || note.engine !== engineNow();
    moved.textContent = moved.hidden ? "" : note.text;
  };
  /* The settings of each input that is not chosen. */
  const choices = () => inputs.map(([input], i) => [input, rows[i]]).filter(([input]) => !input.checked).map(([input, row]) => ({ input, settings: settingsOf(row).all }));
  const refuse = (sentences) => {
    for (const [input, label] of inputs) {
      input.disabled = Boolean(sentences.get(input));
      label.title = sentences.get(input) ?? "";
    }
    const said = inputs.filter(([input]) => input.disabled).map(([input, label]) => `${label.textContent}: ${sentences.get(input)}`);
    closed.textContent = said.join(" ");
  };
  return { element, show, choices, refuse, runsOn, moves };
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}
