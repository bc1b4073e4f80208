/* JSON Schema as OpenAPI 3.1 has it: references followed, shown as lists that fold, and an example
   made where none is given. Nothing is taken for granted: every keyword may be missing or odd. */

import { make } from "./words.js";

const DEEPEST = 6; // levels of an example that is made up
const LIMITS = [["minimum", "≥ "], ["exclusiveMinimum", "> "], ["maximum", "≤ "], ["exclusiveMaximum", "< "],
  ["multipleOf", "a multiple of "], ["minLength", "characters ≥ "], ["maxLength", "characters ≤ "], ["pattern", "like "],
  ["minItems", "items ≥ "], ["maxItems", "items ≤ "], ["minProperties", "keys ≥ "], ["maxProperties", "keys ≤ "]];
const CHOICES = [["oneOf", "one of"], ["anyOf", "any of"], ["allOf", "all of"]];
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** What a reference inside the document leads to; the thing itself where it is none. */
export function resolved(doc, thing) {
  const seen = new Set();
  let found = thing;
  while (isObject(found) && typeof found.$ref === "string") {
    if (!found.$ref.startsWith("#") || seen.has(found.$ref)) return { description: `see ${found.$ref}` };
    seen.add(found.$ref);
    const { $ref, ...beside } = found;
    const target = pointed(doc, $ref);
    if (target === undefined) return { description: `${$ref} is not in the document` };
    found = isObject(target) ? { ...target, ...beside } : target;
  }
  return found ?? {};
}

function pointed(doc, ref) {
  const keys = ref.slice(1).split("/").slice(1).map((key) => decodeURIComponent(key).replaceAll("~1", "/").replaceAll("~0", "~"));
  return keys.reduce((place, key) => place?.[key], doc);
}

const refName = (schema) => (typeof schema?.$ref === "string" ? schema.$ref.split("/").pop() : null);

/** A schema's kind in a few words: `integer or null`, `list of Entry`. */
export function kindOf(doc, given, depth = 0) {
  if (given === true || given === undefined) return "anything";
  if (given === false) return "nothing";
  const name = refName(given);
  if (name) return name;
  if (depth > 4) return "…";
  const schema = resolved(doc, given);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (Array.isArray(schema.enum)) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  for (const [key] of CHOICES) {
    if (Array.isArray(schema[key]) && !schema.type) {
      return schema[key].map((one) => kindOf(doc, one, depth + 1)).join(key === "allOf" ? " and " : " or ");
    }
  }
  const types = [schema.type ?? (schema.properties ? "object" : schema.items ? "array" : "anything")].flat();
  return types.map((type) => {
    if (type === "array") return `list of ${kindOf(doc, schema.items, depth + 1)}`;
    if (type === "object" && isObject(schema.additionalProperties) && !schema.properties) return `object of ${kindOf(doc, schema.additionalProperties, depth + 1)}`;
    return schema.format ? `${type} (${schema.format})` : type;
  }).join(" or ");
}

/** The small print: limits, defaults, and what else a schema says of a value. */
function small(schema) {
  const said = LIMITS.filter(([key]) => key in schema).map(([key, words]) => `${words}${schema[key]}`);
  if ("default" in schema && schema.default !== null) said.push(`default ${JSON.stringify(schema.default)}`);
  for (const key of ["deprecated", "readOnly", "writeOnly", "uniqueItems"]) if (schema[key] === true) said.push(key);
  return said.join(", ");
}

/** A schema as nodes. `open` are the references that lie above, so that a circle ends;
    `told`: what it is stands beside it already. */
export function schemaView(doc, given, open = [], told = false) {
  const schema = resolved(doc, given);
  if (!isObject(schema)) return make("p", { class: "kind" }, kindOf(doc, given));
  const single = alone(schema);
  if (single) return schemaView(doc, single, open, told);
  const name = refName(given);
  const above = name ? [...open, name] : open;
  const parts = [];
  if (schema.description && !told) parts.push(prose(schema.description));
  const rows = [...Object.entries(schema.properties ?? {}).map(([key, one]) => row(doc, key, one, [schema.required].flat().includes(key), above)),
    ...Object.entries(schema.patternProperties ?? {}).map(([key, one]) => row(doc, `keys like ${key}`, one, false, above))];
  if (isObject(schema.additionalProperties)) rows.push(row(doc, "any other key", schema.additionalProperties, false, above));
  if (rows.length) parts.push(make("dl", { class: "fields" }, rows.flat()));
  else if (!hasInside(schema)) parts.push(make("p", { class: "kind" }, [kindOf(doc, given), small(schema)].filter(Boolean).join(", ")));
  for (const [key, words] of CHOICES) {
    if (Array.isArray(schema[key]) && schema[key].some((one) => inside(doc, one))) {
      parts.push(make("p", { class: "kind" }, `${words}:`), make("ul", { class: "choices" }, schema[key].map((one) => make("li", {}, folded(doc, one, above)))));
    }
  }
  const items = [schema.items, ...(Array.isArray(schema.prefixItems) ? schema.prefixItems : [])].filter((one) => inside(doc, one));
  for (const one of items) parts.push(make("p", { class: "kind" }, "each item:"), folded(doc, one, above));
  return make("div", { class: "schema" }, parts);
}

/** The one thing that a schema may be, where it is that or null. */
function alone(schema) {
  const found = (schema.anyOf ?? schema.oneOf)?.filter?.((one) => one?.type !== "null");
  return !schema.properties && found?.length === 1 && isObject(found[0]) ? found[0] : null;
}

const hasInside = (schema) => Boolean(schema.items || schema.prefixItems || CHOICES.some(([key]) => key in schema));

/** Whether there is more to see than a word. */
function inside(doc, given) {
  const schema = resolved(doc, given);
  if (!isObject(schema)) return false;
  return Boolean(schema.properties || schema.patternProperties || isObject(schema.additionalProperties) || inside(doc, schema.items ?? false)
    || CHOICES.some(([key]) => Array.isArray(schema[key]) && schema[key].some((one) => refName(one) || isObject(one?.properties))));
}

function folded(doc, given, open, told = false) {
  const name = refName(given);
  const schema = resolved(doc, given);
  const words = [kindOf(doc, given), isObject(schema) ? small(schema) : ""].filter(Boolean).join(", ");
  if (!inside(doc, given)) return make("span", { class: "kind" }, words);
  if (name && open.includes(name)) return make("span", { class: "kind" }, `${name}, as above`);
  const box = make("details", {}, make("summary", {}, make("span", { class: "kind" }, words)));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(schemaView(doc, given, open, told)); });
  return box;
}

function row(doc, key, given, required, open) {
  const schema = resolved(doc, given);
  return [make("dt", {}, make("code", {}, key), required ? make("span", { class: "required" }, " required") : null),
    make("dd", {}, isObject(schema) && schema.description ? prose(schema.description) : null, folded(doc, given, open, true))];
}

/** Words of a description: paragraphs and `code`; other marks stay as they are written. */
export function prose(text) {
  return make("div", { class: "prose" }, String(text).trim().split(/\n\s*\n/).map((block) =>
    make("p", {}, block.split(/(`[^`]+`)/).map((part) => (/^`.+`$/.test(part) ? make("code", {}, part.slice(1, -1)) : part.replace(/\s*\n\s*/g, " "))))));
}

/** A value that fits a schema: one that is given, else the required keys made up. `open` are the
    references that lie above: a circle ends in null. */
export function exampleOf(doc, given, open = []) {
  const schema = resolved(doc, given), name = refName(given);
  if (!isObject(schema) || open.includes(name) || open.length > DEEPEST) return null;
  if ("example" in schema) return schema.example;
  if (Array.isArray(schema.examples) && schema.examples.length) return schema.examples[0];
  if ("const" in schema) return schema.const;
  if ("default" in schema) return schema.default;
  if (Array.isArray(schema.enum) && schema.enum.length) return schema.enum[0];
  const below = [...open, name ?? ""];
  if (Array.isArray(schema.allOf)) return Object.assign({}, ...schema.allOf.map((one) => exampleOf(doc, one, below)), madeUp(doc, schema, below));
  const choice = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(choice) && choice.length && !schema.properties) return exampleOf(doc, choice[0], below);
  return madeUp(doc, schema, below);
}

function madeUp(doc, schema, open) {
  const type = [schema.type].flat().find((one) => one !== "null") ?? (schema.properties ? "object" : schema.items ? "array" : null);
  if (type === "object") {
    const required = Array.isArray(schema.required) ? schema.required : [];
    return Object.fromEntries(required.map((key) => [key, exampleOf(doc, schema.properties?.[key] ?? {}, open)]));
  }
  if (type === "array") return schema.items ? [exampleOf(doc, schema.items, open)] : [];
  return { string: "text", integer: schema.minimum ?? 1, number: schema.minimum ?? 1, boolean: true }[type] ?? null;
}
