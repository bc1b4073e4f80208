/* What is trained: all weights, LoRA or QLoRA. Each is a recipe, which sets what people usually set. */

import { apply, get } from "./state.js";
import { make, say } from "./words.js";

const LORA = "training.lora";
const RANK = "training.lora.r"; // stays as it is when the recipe changes
const QUANTIZATION = "training.quantization";
const RANKS = "parallelism.data_parallel_size"; // follows from the GPUs again when the engine changes

/** The recipe that the current set-up has. */
export function recipeNow() {
  if (get(LORA) === undefined) return "full";
  return get(QUANTIZATION) === undefined ? "lora" : "qlora";
}

/** The choice of a recipe. `engineNow()` gives the engine, `toEngine(name)` the settings that change
    it, `titleOf(path)` what the form calls a key; show() draws the state. */
export function recipeSwitch({ recipes, engines }, { engineNow, toEngine, titleOf }) {
  const engineTitle = (name) => engines.find((one) => one.name === name).title;
  const keys = [...new Set(recipes.flatMap((one) => Object.values(one.engines).flatMap((each) => Object.keys(each.settings))))];
  const hint = make("p", { class: "hint", id: "recipe-hint" });
  const moved = make("p", { class: "hint moved", role: "status", hidden: true });
  let before = null; // the engine that a recipe replaced
  let note = null; // that the last recipe changed the engine

  function choose(recipe) {
    const from = engineNow();
    const wanted = note?.engine === from ? (before ?? from) : from;
    const { engine, settings } = recipe.engines[wanted];
    const rank = get(RANK);
    const chosen = Object.entries(settings).map(([key, value]) => `${key}=${JSON.stringify(key === RANK && rank ? rank : value)}`);
    before = engine === wanted ? null : wanted;
    const needs = before ? `${recipe.title} needs ${engineTitle(engine)}, so the framework changed from ${engineTitle(before)}.` : `The framework is ${engineTitle(engine)} again.`;
    if (engine !== from) note = { engine, recipe: recipe.name, text: needs };
    else if (note) note.recipe = null;
    const change = engine === from ? [] : [`${RANKS}=null`, ...toEngine(engine)];
    apply([...keys.map((key) => `${key}=null`), ...change, ...chosen]);
    say(`${recipe.title} is set. ${engine === from ? "" : needs} Undo takes it back.`);
  }

  const inputs = recipes.map((recipe) => {
    const input = make("input", { type: "radio", name: "recipe", value: recipe.name, "aria-describedby": "recipe-hint", onchange: () => choose(recipe) });
    return [input, make("label", {}, input, recipe.title)];
  });
  const box = make("div", { class: "switch" }, inputs.map(([, label]) => label));
  const element = make("fieldset", { class: "recipe" }, make("legend", {}, "What do you train"), box, hint, moved);

  /* What the recipe means; or which of its settings are changed. */
  function words(recipe) {
    const { settings, meaning } = recipe.engines[engineNow()];
    const changed = Object.keys(settings).filter((key) => key !== RANK && JSON.stringify(get(key)) !== JSON.stringify(settings[key]));
    return changed.length ? `With other settings than usual: ${changed.map(titleOf).join(", ")}.` : sentence(meaning);
  }

  const show = () => {
    const now = recipes.find((one) => one.name === recipeNow());
    for (const [input] of inputs) input.checked = input.value === now.name;
    hint.textContent = words(now);
    moved.hidden = note?.recipe !== now.name || note.engine !== engineNow();
    moved.textContent = moved.hidden ? "" : note.text;
  };
  return { element, show };
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}
