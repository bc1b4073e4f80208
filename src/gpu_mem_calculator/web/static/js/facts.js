/* What the service knows beside runs: models, cards, the run file's keys, and how long a model's
   sequences may be. */

import * as api from "./api.js";
import { cardOptions, modelOptions, presetNamed } from "./catalogue.js";

const POSITIONS = ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"]; // in a config.json

/** Everything that the form is made of; throws where the service does not answer. */
export async function loadFacts() {
  const paths = ["/api/presets", "/api/gpus", "/api/form"];
  const [presets, { gpus }, { fields, engines, recipes, methods, version }] = await Promise.all(paths.map((path) => api.get(path)));
  const rows = Object.entries(presets).map(([name, row]) => ({ name, title: row.display_name, ...row }));
  return { presets: rows, gpus, fields, engines, recipes, methods, version, models: modelOptions(rows), cards: cardOptions(gpus) };
}

const limits = new Map(); // preset -> tokens, or null while it is asked for

/** The longest sequence of the model, null where it is not known (yet: `later` is called then). */
export function longest(model, presets, later) {
  if (model.max_seq_len) return model.max_seq_len;
  const config = model.config?.text_config ?? model.config;
  const key = config && POSITIONS.find((one) => Number.isInteger(config[one]));
  if (key) return config[key];
  const row = presetNamed(presets, model.name);
  if (!row) return null;
  if (!limits.has(row.name)) askLimit(row.name, later);
  return limits.get(row.name);
}

async function askLimit(name, later) {
  limits.set(name, null);
  try {
    const run = await api.get(`/api/preset/${encodeURIComponent(name)}`);
    limits.set(name, run.model.max_seq_len ?? null);
    later();
  } catch {
    limits.delete(name); // a slider with its usual end does as well
  }
}
