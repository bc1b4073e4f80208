/* The page /docs: whatever OpenAPI 3.1 document the service describes itself with. */

import { kindOf, prose, resolved, schemaView } from "./docs_schema.js";
import { tryIt } from "./docs_try.js";
import { make } from "./words.js";

const METHODS = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
const OTHER = "other";
const byId = (id) => document.getElementById(id);

async function start() {
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error(`the server said ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    byId("about").replaceChildren(make("p", { class: "failed", role: "alert" },
      `The description of the service could not be read: ${error.message}. Reload the page, or open /openapi.json.`));
  }
}

/** Every operation of the document, in its order. */
function operationsOf(doc) {
  const found = [];
  const places = [...Object.entries(doc.paths ?? {}).map((one) => [...one, false]), ...Object.entries(doc.webhooks ?? {}).map((one) => [...one, true])];
  for (const [path, item, webhook] of places) {
    const place = resolved(doc, item);
    for (const method of METHODS.filter((one) => place?.[one])) {
      const told = place[method];
      const merged = new Map([...(place.parameters ?? []), ...(told.parameters ?? [])].map((one) => resolved(doc, one)).map((one) => [`${one.in} ${one.name}`, one]));
      found.push({ path, method, webhook, told, parameters: [...merged.values()], body: told.requestBody ? resolved(doc, told.requestBody) : null,
                   tag: webhook ? "webhooks" : told.tags?.[0] ?? OTHER, id: `${method}${path}`.replace(/[^\w]+/g, "-").replace(/-$/, "") });
    }
  }
  return found;
}

function show(doc) {
  const operations = operationsOf(doc);
  const titles = new Map((doc.tags ?? []).map((tag) => [tag.name, tag.description]));
  const tags = [...new Set([...titles.keys(), ...operations.map((one) => one.tag)])].filter((tag) => operations.some((one) => one.tag === tag));
  const info = doc.info ?? {};
  document.title = `API · ${info.title ?? "service"}`;
  byId("title").replaceChildren(info.title ?? "API", info.version ? make("span", { class: "version" }, ` ${info.version}`) : "");
  byId("about").replaceChildren(info.description ? prose(info.description) : "", make("p", { class: "soft" },
    `${operations.length} operations. The whole document: `, make("a", { href: "/openapi.json" }, "/openapi.json"), `, OpenAPI ${doc.openapi ?? "of no version"}.`));
  byId("operations").replaceChildren(...tags.map((tag) => make("section", { "aria-labelledby": `tag-${slug(tag)}` },
    make("h2", { id: `tag-${slug(tag)}` }, tag), titles.get(tag) ? prose(titles.get(tag)) : null,
    operations.filter((one) => one.tag === tag).map((one) => card(doc, one)))));
  byId("contents").replaceChildren(...tags.flatMap((tag) => [make("h2", {}, tag), make("ul", {}, operations.filter((one) => one.tag === tag).map((one) =>
    make("li", { "data-of": one.id }, make("a", { href: `#${one.id}` }, badge(one.method), make("span", {}, one.path)))))]));
  listen(operations);
}

const slug = (text) => text.toLowerCase().replace(/\W+/g, "-");
const badge = (method) => make("span", { class: `method ${method}` }, method.toUpperCase());

/** An operation: a line that opens. What is inside is made when it is opened first. */
function card(doc, one) {
  const box = make("details", { class: "operation", id: one.id },
    make("summary", {}, badge(one.method), make("code", { class: "path" }, one.path),
      make("span", { class: "summary" }, one.told.summary ?? ""), one.told.deprecated ? make("span", { class: "required" }, "deprecated") : null));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(inside(doc, one)); });
  return box;
}

function inside(doc, one) {
  const parts = [];
  if (one.told.description) parts.push(prose(one.told.description));
  const needs = (one.told.security ?? doc.security ?? []).flatMap((way) => Object.keys(way));
  if (needs.length) parts.push(make("p", { class: "soft" }, `Needs ${[...new Set(needs)].join(" or ")}.`));
  if (one.parameters.length) parts.push(make("h3", {}, "Parameters"), make("dl", { class: "fields" }, one.parameters.flatMap((given) => parameter(doc, given))));
  for (const [type, content] of Object.entries(one.body?.content ?? {})) {
    parts.push(make("h3", {}, "Body ", make("span", { class: "soft" }, `${type}${one.body.required ? ", required" : ""}, ${kindOf(doc, content.schema)}`)));
    if (one.body.description) parts.push(prose(one.body.description));
    parts.push(schemaBox(doc, content.schema, "What may stand in it"));
  }
  parts.push(make("h3", {}, "Answers"), ...answers(doc, one.told.responses ?? {}));
  parts.push(make("h3", {}, one.webhook ? "As it is sent" : "Try it"), ...tryIt(doc, one));
  return make("div", { class: "inside" }, parts);
}

function parameter(doc, given) {
  const schema = given.schema ?? Object.values(given.content ?? {})[0]?.schema;
  return [make("dt", {}, make("code", {}, given.name), make("span", { class: "soft" }, ` ${given.in}`), given.required ? make("span", { class: "required" }, " required") : null),
    make("dd", {}, schemaView(doc, schema), given.description ? prose(given.description) : null)];
}

/** Each answer; a schema that several have unfolds at the first of them. */
function answers(doc, responses) {
  const seen = new Set();
  return Object.entries(responses).map(([status, given]) => response(doc, status, resolved(doc, given), seen));
}

function response(doc, status, given, seen) {
  const contents = Object.entries(given.content ?? {});
  return make("div", { class: "response" },
    make("p", {}, make("strong", { class: /^[123]/.test(status) ? "good" : "bad" }, status), ` ${given.description ?? ""}`,
      make("span", { class: "soft" }, contents.map(([type, content]) => ` ${type}${content.schema ? `, ${kindOf(doc, content.schema)}` : ""}`).join(";"))),
    contents.filter(([, content]) => content.schema && !seen.has(JSON.stringify(content.schema))).map(([, content]) => {
      seen.add(JSON.stringify(content.schema));
      return schemaBox(doc, content.schema, "What stands in it");
    }));
}

/** A schema that unfolds; a plain one has nothing to unfold. */
function schemaBox(doc, schema, words) {
  const found = resolved(doc, schema);
  if (!["properties", "items", "oneOf", "anyOf", "allOf", "additionalProperties"].some((key) => typeof found?.[key] === "object")) return null;
  const box = make("details", { class: "fold" }, make("summary", {}, words));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(schemaView(doc, schema)); });
  return box;
}

function listen(operations) {
  const find = byId("find");
  const sift = () => {
    const sought = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    for (const one of operations) {
      const text = `${one.method} ${one.path} ${one.told.summary ?? ""} ${one.told.description ?? ""} ${one.tag}`.toLowerCase();
      const hidden = !sought.every((word) => text.includes(word));
      byId(one.id).hidden = hidden;
      document.querySelector(`[data-of="${one.id}"]`).hidden = hidden;
      number += hidden ? 0 : 1;
    }
    for (const section of byId("operations").children) section.hidden = !section.querySelector(".operation:not([hidden])");
    byId("found").textContent = sought.length ? `${number} of ${operations.length} operations` : "";
  };
  find.addEventListener("input", sift);
  const follow = () => {
    const box = location.hash.length > 1 ? byId(decodeURIComponent(location.hash.slice(1))) : null;
    if (!box?.classList.contains("operation")) return;
    if (box.hidden) { find.value = ""; sift(); }
    box.open = true;
    box.scrollIntoView();
    box.querySelector("summary").focus({ preventScroll: true });
  };
  window.addEventListener("hashchange", follow);
  byId("contents").addEventListener("click", (event) => { if (event.target.closest("a")?.getAttribute("href") === location.hash) follow(); });
  follow();
}

start();
