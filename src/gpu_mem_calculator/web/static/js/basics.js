/* What comes first in the form: the pickers of the model and of the card. */

import { cardNamed, cardWords, modelWords, parameters, presetNamed, typedCard, typedModel } from "./catalogue.js";
import { Picker } from "./picker.js";
import { get, set } from "./state.js";

const SIZES = ["gpu", "gpu_memory_gb", "gpu_memory_bytes", "available_memory_bytes"]; // what says which card

/** The picker of models; update(problem, tokens) shows what the state says now. */
export function modelPicker(facts) {
  const picker = new Picker({
    id: "model",
    label: "Model",
    placeholder: "a name, a hub id, or a size such as 7B",
    options: () => facts.models,
    also: (text) => typedModel(text, facts.presets),
    picked: (option) => set("model", typeof option.value === "string" ? { name: option.value } : option.value),
  });
  const update = (problem, tokens) => {
    const model = get("model") ?? {};
    const hint = [modelHint(model, facts.presets), tokens ? `up to ${tokens.toLocaleString("en")} tokens` : ""];
    picker.show(modelWords(model, facts.presets), hint.filter(Boolean).join(", "), problem);
  };
  return { element: picker.element, input: picker.input, update };
}

function modelHint(model, presets) {
  const row = presetNamed(presets, model.name);
  const own = Object.keys(model).filter((key) => key !== "name" && key !== "config");
  const changed = model.name && own.length ? `, with its own ${own.join(", ").replaceAll("_", " ")}` : "";
  if (row) return `${parameters(row.num_parameters)} parameters${changed}`;
  if (model.config) return configHint(model.config);
  if (model.name) return `looked up by the service${changed}`;
  return model.num_parameters ? "nearest known architecture assumed" : "";
}

function configHint(config) {
  const text = config.text_config ?? config;
  const parts = [["num_hidden_layers", "", " layers"], ["hidden_size", "hidden size ", ""], ["vocab_size", "vocabulary ", ""]];
  return parts.filter(([key]) => text[key]).map(([key, before, after]) => `${before}${text[key].toLocaleString("en")}${after}`).join(", ");
}

/** The picker of cards. */
export function cardPicker(facts) {
  const picker = new Picker({
    id: "card",
    label: "GPU",
    placeholder: "any of 80 GB",
    options: () => facts.cards,
    also: typedCard,
    picked: (option) => {
      const kept = Object.entries(get("hardware") ?? {}).filter(([key]) => !SIZES.includes(key));
      const chosen = typeof option.value === "string" ? { gpu: option.value } : { gpu_memory_gb: option.value };
      set("hardware", { ...chosen, ...Object.fromEntries(kept) });
    },
  });
  const update = (problem) => {
    const hardware = get("hardware") ?? {};
    picker.show(cardWords(hardware, facts.gpus), cardHint(hardware, facts.gpus), problem);
  };
  return { element: picker.element, input: picker.input, update };
}

function cardHint(hardware, gpus) {
  const row = cardNamed(gpus, hardware.gpu);
  if (hardware.available_memory_bytes) return `${gib(hardware.available_memory_bytes)} of it free`;
  return row ? `${gib(row.memory_bytes)} usable` : "";
}

function gib(bytes) {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
