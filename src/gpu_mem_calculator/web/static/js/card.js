/* The card under the picture: one instant's kinds, and its largest tensors. */

import { fragment, gib, make, swatch } from "./words.js";

const LARGEST = 6;
const REST = /^\d+ more$/; // what stands for the entries that the service left out

/** The card's content; `kind` is what is looked at of the instant, or null for all of it. */
export function cardOf(look, index, kind, { peak, whole, ask }) {
  const one = look.columns[index];
  return [head(look, index, peak, whole), kinds(look, one, kind, ask), largest(look, one, kind, ask)];
}

function head(look, index, peak, whole) {
  const one = look.columns[index];
  const share = Math.round((100 * one.bytes) / look.result.gpu_memory_bytes);
  return make(
    "div",
    { class: "card-head" },
    make(
      "p",
      { class: "card-title" },
      make("span", { class: "soft" }, `${index + 1} of ${look.columns.length} `),
      index === peak ? make("span", { class: "badge" }, whole ? "peak" : "highest here") : "",
      one.title,
    ),
    make(
      "p",
      { class: "card-total" },
      make("strong", {}, `${gib(one.bytes)} GiB`),
      make("span", { class: "soft" }, ` ${share} % of the card`),
    ),
  );
}

/* Every kind that the run has, in the picture's order, from its legend. */
function known(look) {
  return [...fragment(look.parts.legend).querySelectorAll("li")].flatMap((one) => {
    const found = one.querySelector("rect")?.getAttribute("fill").match(/#p-(\w+)/);
    return found ? [{ kind: found[1], title: one.textContent }] : [];
  });
}

function kinds(look, one, kind, ask) {
  const rows = known(look).map((each) => {
    const bytes = one.slices.find((part) => part.kind === each.kind)?.bytes ?? 0;
    const opens = () => ask({ title: `${each.title} at ${one.title}`, kind: each.kind, instant: one.title });
    return row(each.kind, each.title, bytes, opens, each.kind === kind);
  });
  return make("div", {}, make("h3", {}, "By kind, GiB"), make("ul", { class: "rows" }, rows));
}

function largest(look, one, kind, ask) {
  const parts = one.slices.filter((part) => kind === null || part.kind === kind);
  const entries = parts.flatMap((part) => part.entries.map(([name, bytes]) => [name, bytes, part.kind]));
  const named = entries.filter(([name]) => !REST.test(name)).sort((a, b) => b[1] - a[1]);
  const left = entries.length - named.length; // kinds with more than the service names
  const rows = named.slice(0, LARGEST).map(([name, bytes, of]) => row(of, name, bytes, () => ask({ title: name, name })));
  const all = () => ask({ title: one.title, kind: kind ?? undefined, instant: one.title });
  const more = named.length > LARGEST || left ? make("button", { type: "button", class: "more", onclick: all }, "all of them") : "";
  const title = kind === null ? "Largest tensors" : `Largest ${look.titles[kind]}`;
  return make("div", {}, make("h3", {}, title), make("ul", { class: "rows" }, rows), more);
}

function row(kind, title, bytes, opens, looked = false) {
  const shown = bytes ? gib(bytes) : "–";
  const hint = bytes ? "Where it comes from" : null;
  return make(
    "li",
    {},
    make(
      "button",
      { type: "button", class: looked ? "row looked" : "row", disabled: !bytes, onclick: opens, title: hint },
      swatch(kind),
      make("span", { class: "name" }, title),
      make("span", { class: "figure" }, shown),
    ),
  );
}
