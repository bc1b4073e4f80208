/* Trying an address: its parameters and its body as fields, the same as a curl command, and the
   answer with its status and its time. */

import { exampleOf, kindOf, resolved } from "./docs_schema.js";
import { copy, make } from "./words.js";

const MOST = 200_000; // characters of an answer that are shown
const EDITABLE = /json|text|xml|yaml|toml|x-www-form-urlencoded/;
const FILES = "multipart/form-data";

/** The part of an operation in which it is tried. */
export function tryIt(doc, operation) {
  const fields = operation.parameters.map((one) => field(doc, operation, one));
  const body = bodyField(doc, operation);
  if (operation.webhook) return body ? [make("pre", { tabindex: "0", "aria-label": "Body" }, body.text.value)] : [];
  const command = make("pre", { tabindex: "0", "aria-label": "curl command" });
  const show = () => { command.textContent = curl(doc, operation, fields, body); };
  const copied = make("button", { type: "button", class: "button quiet" }, "Copy");
  copied.addEventListener("click", () => copy(command.textContent, "command", copied));
  const answer = make("div", { class: "answer", role: "status" });
  const send = make("button", { type: "submit", class: "button primary" }, "Try it");
  const form = make("form", { class: "try", autocomplete: "off" },
    fields.map((one) => one.node), body ? body.nodes : [],
    make("div", { class: "send" }, send), answer);
  form.addEventListener("input", show);
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(doc, operation, fields, body, send, answer);
  });
  show();
  return [form, make("div", { class: "example-head" }, make("h4", {}, "With curl"), copied), command];
}

let numbered = 0;

/** A parameter's label and its input. */
function field(doc, operation, given) {
  const schema = resolved(doc, given.schema ?? Object.values(given.content ?? {})[0]?.schema ?? {});
  const id = `field-${(numbered += 1)}`;
  const start = given.example ?? Object.values(given.examples ?? {})[0]?.value ?? (given.required ? exampleOf(doc, schema) : "");
  const value = start === null ? "" : typeof start === "object" ? [start].flat().map(String).join(",") : String(start);
  const choices = Array.isArray(schema.enum) ? schema.enum.map(String) : null;
  const input = choices
    ? make("select", { id }, given.required ? null : make("option", { value: "" }, "not said"), choices.map((one) => make("option", { value: one, selected: one === value }, one)))
    : make("input", { id, value, placeholder: value || kindOf(doc, schema), required: given.required === true, disabled: given.in === "cookie", spellcheck: "false" });
  const node = make("p", { class: "field" }, make("label", { for: id }, make("code", {}, given.name), ` in ${given.in}`), input);
  return { given, schema, input, node };
}

function bodyField(doc, operation) {
  const media = Object.keys(operation.body?.content ?? {});
  if (!media.length) return null;
  const id = `field-${(numbered += 1)}`;
  const type = make("select", { id: `${id}-type`, "aria-label": "Type of the body" }, media.map((one) => make("option", {}, one)));
  const text = make("textarea", { id, rows: 8, spellcheck: "false" });
  const fill = () => {
    const made = bodyExample(doc, operation.body.content[type.value], type.value);
    text.value = made;
    text.rows = Math.min(24, Math.max(3, made.split("\n").length + 1));
  };
  type.addEventListener("change", fill);
  fill();
  const nodes = [make("p", { class: "field" }, make("label", { for: id }, "body"), media.length > 1 ? type : make("span", { class: "soft" }, media[0])), text];
  return { type, text, nodes };
}

function bodyExample(doc, content, type) {
  const named = Object.values(content?.examples ?? {})[0];
  const value = content?.example ?? (named ? resolved(doc, named).value : undefined) ?? exampleOf(doc, content?.schema ?? {});
  if (typeof value === "string" && !/json/.test(type)) return value;
  if (/urlencoded/.test(type)) return new URLSearchParams(value ?? {}).toString();
  return JSON.stringify(value, null, 2) ?? "";
}

/** Where the service answers: the document's first server if it is this origin, else this origin. */
function base(doc) {
  const said = doc.servers?.[0]?.url;
  try {
    const url = new URL(said ?? "/", location.href);
    return url.origin === location.origin ? url.href.replace(/\/$/, "") : location.origin;
  } catch {
    return location.origin;
  }
}

function address(doc, operation, fields) {
  let path = operation.path;
  const query = new URLSearchParams();
  for (const { given, schema, input } of fields) {
    const value = input.value;
    if (given.in === "path") path = path.replace(`{${given.name}}`, encodeURIComponent(value));
    if (given.in !== "query" || value === "") continue;
    const many = [schema.type].flat().includes("array") && given.explode !== false;
    for (const one of many ? value.split(",") : [value]) query.append(given.name, one.trim());
  }
  const search = query.toString().replaceAll("%2C", ",");
  return `${base(doc)}${path}${search ? `?${search}` : ""}`;
}

const headersOf = (fields) => fields.filter(({ given, input }) => given.in === "header" && input.value !== "").map(({ given, input }) => [given.name, input.value]);
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(doc, operation, fields, body) {
  const words = ["curl"];
  if (operation.method !== "get") words.push("-X", operation.method.toUpperCase());
  words.push(quoted(address(doc, operation, fields)));
  for (const [name, value] of headersOf(fields)) words.push("-H", quoted(`${name}: ${value}`));
  if (!body) return words.join(" ");
  if (body.type.value === FILES) return `${words.join(" ")} \\\n  -F ${quoted("name=value")}`;
  return `${words.join(" ")} \\\n  -H ${quoted(`content-type: ${body.type.value}`)} \\\n  --data-raw ${quoted(body.text.value)}`;
}

async function ask(doc, operation, fields, body, button, answer) {
  const options = { method: operation.method.toUpperCase(), headers: headersOf(fields) };
  if (body && !EDITABLE.test(body.type.value)) {
    answer.replaceChildren(make("p", {}, `A body of ${body.type.value} cannot be written here; use curl.`));
    return;
  }
  if (body && !["GET", "HEAD"].includes(options.method)) {
    options.body = body.text.value;
    options.headers.push(["content-type", body.type.value]);
  }
  button.disabled = true;
  answer.replaceChildren(make("p", { class: "soft" }, "Asking…"));
  const start = performance.now();
  try {
    const reply = await fetch(address(doc, operation, fields), options);
    const text = await reply.text();
    answer.replaceChildren(...shown(reply, text, performance.now() - start));
  } catch (error) {
    answer.replaceChildren(make("p", { class: "failed" }, `Nothing answered: ${error.message.replace(/\.$/, "")}.`));
  } finally {
    button.disabled = false;
  }
}

function shown(reply, text, milliseconds) {
  const type = (reply.headers.get("content-type") ?? "").split(";")[0];
  const size = `${text.length.toLocaleString("en")} characters`;
  const head = make("p", { class: reply.ok ? "worked" : "failed" }, make("strong", {}, `${reply.status} ${reply.statusText}`.trim()),
    `, ${Math.round(milliseconds).toLocaleString("en")} ms, ${type || "no type"}, ${size}`);
  if (!text) return [head];
  let pretty = text;
  if (/json/.test(type)) {
    try {
      pretty = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      /* it says JSON and is none: shown as it came */
    }
  }
  const cut = pretty.length > MOST ? `${pretty.slice(0, MOST)}\n… cut` : pretty;
  return [head, make("pre", { tabindex: "0", "aria-label": "Answer" }, cut)];
}
