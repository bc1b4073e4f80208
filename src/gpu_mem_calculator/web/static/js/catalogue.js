/* The models and cards that have a name, as options of a picker, and what else can be typed. */

import { spell } from "./picker.js";

const SIZE = /^(\d+(?:\.\d+)?)\s*([bmt]?)$/i; // 7, 7B, 350M, 1.5T
const HUB = /^[\w.-]+\/[\w.-]+$/; // owner/name
const MEMORY = /^(\d+(?:\.\d+)?)\s*(gb|gib|g)?$/i; // 24, 24 GB
const LARGEST = 2000; // GB of a card; a larger number is rather a name

/** A count of parameters: 8.03 B. */
export function parameters(count) {
  const [unit, by] = count >= 1e12 ? ["T", 1e12] : count >= 1e9 ? ["B", 1e9] : ["M", 1e6];
  const value = count / by;
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${unit}`;
}

/* The version in a preset's name: 3.1 of llama3.1-8b, none of llama-7b. */
const version = (name) => Number(name.match(/^[a-z]+-?v?(\d+(?:\.\d+)?)(?=-|$)/)?.[1] ?? 0);

/** The presets as options; of those that match alike, the newest first. */
export function modelOptions(presets) {
  return presets.map((row) => ({
    value: row.name,
    title: row.title,
    note: row.hub_id ?? row.name,
    size: parameters(row.num_parameters),
    rank: -version(row.name),
    words: [row.name, row.title, row.hub_id].filter(Boolean).join(" "),
    spellings: row.spellings,
    kin: row.family,
    row,
  }));
}

/** What a typed text can mean beside the presets: a size, a name on the hub, a name that the service looks up. */
export function typedModel(text, presets) {
  const typed = text.trim();
  if (!typed || presetNamed(presets, typed)) return [];
  const size = typed.match(SIZE);
  if (size) {
    const value = `${size[1]}${(size[2] || "b").toUpperCase()}`;
    const note = "only the size: the nearest architecture is assumed";
    return [{ value: { num_parameters: value }, title: `${value} parameters`, note, exact: true }];
  }
  const hub = HUB.test(typed);
  const note = hub ? "looked up on the hub" : "as typed";
  return [{ value: { name: typed }, title: typed, note, exact: hub, late: !hub }];
}

/** The row of a preset by any of its names, in any spelling. */
export function presetNamed(presets, name) {
  const key = String(name ?? "").toLowerCase();
  const words = spell(name);
  const own = (row) => [row.name, row.hub_id].some((x) => x?.toLowerCase() === key);
  return key ? presets.find(own) ?? presets.find((row) => row.spellings?.includes(words)) : undefined;
}

/** What the model section says, in a few words. */
export function modelWords(model, presets) {
  if (model.name) return presetNamed(presets, model.name)?.title ?? model.name;
  if (model.config) return `config.json: ${model.config.model_type ?? "no model_type"}`;
  if (model.num_parameters) return `${model.num_parameters} parameters`;
  return Object.keys(model).length ? "own sizes" : "";
}

const VENDOR = /^(NVIDIA|AMD|Intel|Google|Apple)\s+/;
const KINDS = ["datacenter", "consumer", "workstation", "laptop", "unified", "slice"];

/** A card's title without its maker. */
export function cardTitle(row) {
  return row.title.replace(VENDOR, "");
}

/** The cards as options: newest first within a vendor's kind. */
export function cardOptions(gpus) {
  const vendors = ["nvidia", "amd", "apple", "intel", "google"];
  const rank = (row) => 10 * place(vendors, row.vendor) + place(KINDS, row.kind);
  const rows = gpus.map((row, order) => ({ row, order }));
  rows.sort((a, b) => rank(a.row) - rank(b.row) || b.order - a.order);
  return rows.map(({ row }) => ({
    value: row.name,
    title: cardTitle(row),
    note: `${row.title.match(VENDOR)?.[1] ?? row.vendor}, ${row.name}`,
    size: `${row.memory_gb} GB`,
    rank: (/sxm/.test(row.name) ? 0 : 1 + place(KINDS, row.kind)) + row.title.length / 100 + row.memory_gb / 1e6, // of those that match alike, the one that most have, with the least memory
    words: [row.name, row.title, ...(row.aliases ?? []), row.architecture, `${row.memory_gb}gb`].filter(Boolean).join(" "),
    row,
  }));
}

function place(list, name) {
  const at = list.indexOf(name);
  return at < 0 ? list.length : at;
}

/** A card that is only a size, or a name that the service looks up; a bare number may rather be part of a name. */
export function typedCard(text) {
  const typed = text.trim();
  const found = typed.match(MEMORY);
  const size = Number(found?.[1]);
  if (!(size > 0 && size <= LARGEST)) return typed ? [{ value: typed, title: typed, note: "as typed", late: true }] : [];
  return [{ value: size, title: `${size} GB`, note: "any card of that size", exact: true, late: !found[2] }];
}

/** The row of a card by its name; a beginning is enough where it is unique. */
export function cardNamed(gpus, name) {
  const key = String(name ?? "").toLowerCase();
  if (!key) return undefined;
  const whole = gpus.find((row) => [row.name, ...(row.aliases ?? [])].some((x) => x.toLowerCase() === key));
  const begins = gpus.filter((row) => row.name.startsWith(key));
  return whole ?? (begins.length === 1 ? begins[0] : undefined);
}

/** What the hardware section says of the card. */
export function cardWords(hardware, gpus) {
  const row = cardNamed(gpus, hardware.gpu);
  if (row || hardware.gpu) return row ? cardTitle(row) : hardware.gpu;
  if (hardware.gpu_memory_gb) return `${hardware.gpu_memory_gb} GB`;
  if (hardware.gpu_memory_bytes) return `${hardware.gpu_memory_bytes.toLocaleString("en")} bytes`;
  return "";
}
