/* The picture of a step, alive: it moves to its new shape, and each instant can be looked at. */

import { cardOf } from "./card.js";
import { draw, fragment, gib, say } from "./words.js";

const MOVE = 260; // milliseconds, as in result.css
const GEOMETRY = ["x", "y", "width", "height", "d"];
const MARKS = [".limit", ".peak"]; // drawn over the slices, and moved like them
const NONE = { column: null, kind: null };

let plot = null; // where the svg is
let card = null;
let ask = null; // opens the explanation
let svg = null;
let layer = null; // the svg's layers: hits, under, stacks, marks, above; and the cursor
let look = null;
let peak = 0;
let at = NONE; // what is looked at; none: the peak

/** Bring a plot and its card to life; `opens({title, kind, instant})` explains entries. */
export function mountPicture(element, cardElement, opens) {
  [plot, card, ask] = [element, cardElement, opens];
  plot.addEventListener("pointermove", pointed);
  plot.addEventListener("click", (event) => {
    pointed(event);
    if (event.target.closest(".slice")) open();
  });
}

/** The index of the highest instant of a step. */
export function peakOf({ result, columns }) {
  const same = columns.map((one) => (one.title === result.peak_instant && one.phase === result.peak_phase ? one.bytes : -1));
  return same.indexOf(Math.max(...same));
}

/** Show a look's picture: moved into place where the instants are the same, else anew. Its card is
    shown on its own, as it can wait for a frame. */
export function showPicture(next) {
  const drawn = fragment(next.parts.picture).querySelector("svg");
  const same = svg !== null && sameShape(drawn, next.columns);
  look = next;
  peak = peakOf(look);
  if (same) move(drawn);
  else replace(drawn);
  svg.setAttribute("aria-label", `${drawn.getAttribute("aria-label")} Arrow keys go through instants and kinds.`);
  if (!part()) at = look.columns[at.column] ? { ...at, kind: null } : NONE;
  mark();
}

function sameShape(drawn, columns) {
  return (
    svg.getAttribute("viewBox") === drawn.getAttribute("viewBox") &&
    columns.length === look.columns.length &&
    columns.every((one, i) => one.title === look.columns[i].title)
  );
}

/* ---- drawing ---- */

/* A new svg's parts: columns to point at, what lies under the slices, they, marks, the rest. */
function sorted(drawn) {
  const found = { hits: [], under: [], stacks: [], marks: [], above: [] };
  for (const one of drawn.querySelectorAll("svg > *, svg > g > *")) {
    if (one.matches("g, title, desc")) continue;
    if (one.matches(".hit")) found.hits.push(one);
    else if (one.matches(".slice")) found.stacks.push(one);
    else if (MARKS.some((name) => one.matches(name))) found.marks.push(one);
    else (found.stacks.length ? found.above : found.under).push(one);
  }
  return found;
}

function replace(drawn) {
  const found = sorted(drawn);
  const hidden = (name) => (name === "hits" ? {} : { "aria-hidden": "true" });
  svg = drawn;
  layer = {};
  for (const [name, parts] of Object.entries(found)) {
    layer[name] = draw("g", { class: name, ...hidden(name) }, parts);
  }
  layer.cursor = draw("rect", { class: "cursor", "aria-hidden": "true" });
  const set = { role: "application", tabindex: "0", "aria-roledescription": "chart" };
  for (const [name, value] of Object.entries(set)) svg.setAttribute(name, value);
  svg.replaceChildren(layer.under, layer.hits, layer.cursor, layer.stacks, layer.marks, layer.above);
  svg.addEventListener("keydown", pressed);
  svg.addEventListener("focus", () => at.column === null && lookAt(peak, null));
  plot.replaceChildren(svg);
}

const slot = (one) => `${one.dataset.column}:${one.dataset.kind}`;

function move(drawn) {
  const found = sorted(drawn);
  const old = new Map([...layer.stacks.querySelectorAll(".slice:not(.leaving)")].map((one) => [slot(one), one]));
  for (const one of found.stacks) {
    const there = old.get(slot(one));
    if (there) place(there, one);
    else grow(one);
    old.delete(slot(one));
  }
  old.forEach(leave);
  for (const one of found.marks) {
    const there = layer.marks.querySelector(`.${one.classList[0]}`);
    if (there) place(there, one);
    else layer.marks.append(one);
  }
  for (const name of ["hits", "under", "above"]) layer[name].replaceChildren(...found[name]);
}

function place(there, wanted) {
  for (const name of GEOMETRY) {
    if (wanted.hasAttribute(name)) there.setAttribute(name, wanted.getAttribute(name));
  }
}

function flatten(one) {
  one.setAttribute("y", Number(one.getAttribute("y")) + Number(one.getAttribute("height")));
  one.setAttribute("height", 0);
}

function grow(one) {
  const wanted = one.cloneNode();
  flatten(one);
  layer.stacks.append(one);
  requestAnimationFrame(() => place(one, wanted));
}

function leave(one) {
  one.classList.add("leaving");
  flatten(one);
  setTimeout(() => one.remove(), MOVE);
}

/* ---- looking at an instant ---- */

const filled = (column) => look.columns[column].slices.filter((one) => one.bytes);

/* The slice that is looked at, or undefined. */
function part() {
  return at.column === null ? undefined : look.columns[at.column]?.slices.find((one) => one.kind === at.kind);
}

function pointed(event) {
  const { column, kind } = event.target.dataset;
  if (column !== undefined) lookAt(Number(column), kind ?? null);
}

function lookAt(column, kind) {
  if (at.column === column && at.kind === kind) return;
  at = { column, kind };
  mark();
  showCard();
}

/* A frame around what is looked at. */
function mark() {
  for (const one of layer.stacks.querySelectorAll(".looked")) one.classList.remove("looked");
  layer.cursor.classList.toggle("shown", at.column !== null);
  if (at.column === null) return;
  place(layer.cursor, layer.hits.children[at.column]);
  layer.stacks.querySelector(`[data-column="${at.column}"][data-kind="${at.kind}"]`)?.classList.add("looked");
}

/** Show what the instant that is looked at holds, or the peak. */
export function showCard() {
  card.replaceChildren(...cardOf(look, at.column ?? peak, at.kind, { peak, ask }));
}

/* ---- keys ---- */

function stepped(key) {
  const column = at.column ?? peak;
  const last = look.columns.length - 1;
  const across = { ArrowLeft: Math.max(0, column - 1), ArrowRight: Math.min(last, column + 1), Home: 0, End: last }[key];
  if (across !== undefined) return [across, filled(across).some((one) => one.kind === at.kind) ? at.kind : null];
  const kinds = [null, ...filled(column).map((one) => one.kind)]; // null: the whole column
  const up = { ArrowUp: 1, ArrowDown: -1 }[key];
  if (up === undefined) return null;
  const to = Math.min(kinds.length - 1, Math.max(0, kinds.indexOf(at.kind) + up));
  return [column, kinds[to]];
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const to = stepped(event.key);
  if (to) {
    lookAt(...to);
    say(placeWords());
  } else if (event.key === "Enter" || event.key === " ") open();
  else if (event.key === "Escape") lookAt(null, null);
  else return;
  event.preventDefault();
}

function placeWords() {
  const one = look.columns[at.column];
  const here = part();
  if (here) {
    const largest = here.entries.slice(0, 3).map(([name, bytes]) => `${name} ${gib(bytes)}`);
    return `${here.title}: ${gib(here.bytes)} GiB at ${one.title}. Largest: ${largest.join(", ")}.`;
  }
  const kinds = filled(at.column).map((each) => `${each.title} ${gib(each.bytes)}`);
  const highest = at.column === peak ? ", the peak" : "";
  return `${at.column + 1} of ${look.columns.length}${highest}, ${one.title}: ${gib(one.bytes)} GiB. ${kinds.join(", ")}.`;
}

function open() {
  const one = look.columns[at.column ?? peak];
  const here = part();
  ask({ title: `${here?.title ?? "Everything"} at ${one.title}`, kind: here?.kind, instant: one.title });
}
