/* The picture of a step, alive: it moves to its new shape, each instant can be looked at, and a part
   of the step can be enlarged. */

import { cardOf } from "./card.js";
import { draw, fragment, gib, make, say } from "./words.js";

const GEOMETRY = ["x", "y", "width", "height", "d"];
const MARKS = [".limit", ".peak"]; // drawn over the areas, and moved like them
const NONE = { column: null, kind: null };
const DRAG = 8; // pixels from which a drag encloses a part of the step

let plot = null; // where the svg is
let card = null;
let tools = null; // the buttons to enlarge
let ask = null; // opens the explanation
let enlarge = null; // asks for the picture of a part of the step
let svg = null;
let layer = null; // the svg's layers: under, stacks, marks, above; and the crosshair
let look = null;
let at = NONE; // what is looked at; none: the peak
let part = null; // the first and the last stretch that are enlarged, from 1 on; null: the whole step
let drag = null; // the x at which a drag began, and the column

/** Bring a plot and its card to life; `opens({title, kind, instant})` explains entries, `asks()` gets
    the picture of `enlarged()`. */
export function mountPicture(element, cardElement, toolsElement, opens, asks) {
  [plot, card, tools, ask, enlarge] = [element, cardElement, toolsElement, opens, asks];
  const button = (name, label, act) => make("button", { type: "button", class: "button quiet", title: label, "aria-label": label, onclick: act }, name);
  tools.append(
    make("span", { class: "soft" }),
    button("+", "Enlarge the part around what is looked at", () => zoom(1 / 3)),
    button("−", "Show more of the step", () => zoom(3)),
    button("Whole step", "Show the whole step", () => show(null)),
  );
  plot.addEventListener("pointermove", moved);
  plot.addEventListener("pointerdown", pressedDown);
  plot.addEventListener("pointerup", released);
  plot.addEventListener("pointercancel", () => brush(null));
}

/** The part of the step that is enlarged, as the service takes it. */
export const enlarged = () => (part === null ? "" : part.join(","));

/** The columns that are drawn: of the whole step, or of a part. */
const seen = () => look.zoom ?? look;
const columns = () => seen().columns;

/** Show a look's picture, of which only a part may be new, and say which. */
export function showPart(next) {
  showPicture(next);
  showCard();
  say(tools.querySelector("span").textContent);
}

/** Show a look's picture: moved into place where the instants are the same, else anew. Its card is
    shown on its own, as it can wait for a frame. */
export function showPicture(next) {
  const drawn = fragment(next.parts.picture).querySelector("svg");
  const before = look;
  const same = svg !== null && sameShape(drawn, (next.zoom ?? next).columns);
  look = next;
  if (part !== null && (!look.stretches || (before && before.stretches !== look.stretches))) show(null);
  if (same) move(drawn);
  else replace(drawn);
  const keys = look.stretches ? "Arrow keys go through the step and its kinds, plus and minus enlarge, 0 shows all." : "Arrow keys go through instants and kinds.";
  svg.setAttribute("aria-label", `${drawn.getAttribute("aria-label")} ${keys}`);
  if (!slice()) at = columns()[at.column] ? { ...at, kind: null } : NONE;
  tools.hidden = !look.stretches;
  tools.querySelector("span").textContent = look.zoom ? partWords() : "Drag across the picture to enlarge a part.";
  tools.lastElementChild.disabled = !look.zoom;
  mark();
}

function sameShape(drawn, wanted) {
  const shown = columns();
  return (
    svg.getAttribute("viewBox") === drawn.getAttribute("viewBox") &&
    wanted.length === shown.length &&
    wanted.every((one, i) => one.first === shown[i].first && (one.first >= 0 || one.title === shown[i].title))
  );
}

/* ---- drawing ---- */

/* A new svg's parts: what lies under the areas, they, marks, the rest. */
function sorted(drawn) {
  const found = { under: [], stacks: [], marks: [], above: [] };
  for (const one of drawn.querySelectorAll("svg > *, svg > g > *")) {
    if (one.matches("g, title, desc")) continue;
    if (one.matches(".slice")) found.stacks.push(one);
    else if (MARKS.some((name) => one.matches(name))) found.marks.push(one);
    else (found.stacks.length ? found.above : found.under).push(one);
  }
  return found;
}

function replace(drawn) {
  const found = sorted(drawn);
  svg = drawn;
  layer = {};
  for (const [name, parts] of Object.entries(found)) layer[name] = draw("g", { class: name }, parts);
  layer.cursor = draw("g", { class: "cursor" }, draw("rect", { class: "at" }), draw("path", { class: "cross" }), draw("text", { class: "level" }), draw("rect", { class: "brush" }));
  const set = { role: "application", tabindex: "0", "aria-roledescription": "chart" };
  for (const [name, value] of Object.entries(set)) svg.setAttribute(name, value);
  const inside = draw("g", { "aria-hidden": "true" }, layer.under, layer.stacks, layer.cursor, layer.marks, layer.above);
  svg.replaceChildren(inside);
  svg.addEventListener("keydown", pressed);
  svg.addEventListener("focus", () => at.column === null && lookAt(seen().peak, null));
  plot.replaceChildren(svg);
}

function move(drawn) {
  const found = sorted(drawn);
  const old = new Map([...layer.stacks.children].map((one) => [one.dataset.kind, one]));
  layer.stacks.replaceChildren(...found.stacks.map((one) => (old.has(one.dataset.kind) ? place(old.get(one.dataset.kind), one) : one)));
  for (const one of found.marks) {
    const there = layer.marks.querySelector(`.${one.classList[0]}`);
    if (there) place(there, one);
    else layer.marks.append(one);
  }
  for (const name of ["under", "above"]) layer[name].replaceChildren(...found[name]);
}

function place(there, wanted) {
  for (const name of GEOMETRY) {
    if (wanted.hasAttribute(name)) there.setAttribute(name, wanted.getAttribute(name));
  }
  return there;
}

/* ---- looking at an instant ---- */

const filled = (column) => columns()[column].slices.filter((one) => one.bytes);

/* The slice that is looked at, or undefined. */
function slice() {
  return at.column === null ? undefined : columns()[at.column]?.slices.find((one) => one.kind === at.kind);
}

/* The column under a pointer, and the kind; null beside the plot. */
function under(event) {
  const box = svg.getBoundingClientRect();
  const { left, top, width, height, top_bytes: most, low_bytes: least } = look.place;
  const scale = svg.viewBox.baseVal.width / box.width;
  const x = ((event.clientX - box.left) * scale - left) / width;
  const y = (event.clientY - box.top) * scale - top;
  if (x < 0 || x >= 1 || y < 0 || y > height) return null;
  const column = Math.floor(x * columns().length);
  let level = least + (1 - y / height) * (most - least);
  const found = columns()[column].slices.find((one) => (level -= one.bytes) < 0);
  return { column, kind: found?.kind ?? null };
}

function moved(event) {
  const to = svg && under(event);
  if (!to) return;
  if (drag !== null && look.stretches && Math.abs(event.clientX - drag.x) >= DRAG) brush(to.column);
  lookAt(to.column, to.kind);
}

function pressedDown(event) {
  const to = event.button === 0 && svg && under(event);
  drag = to ? { x: event.clientX, column: to.column, over: null } : null;
}

/* A click opens what is there, a drag enlarges what it encloses. */
function released(event) {
  const over = drag?.over ?? null;
  const [from, to] = [drag?.column, svg && under(event)];
  brush(null);
  if (over !== null) enclose(Math.min(from, over), Math.max(from, over));
  else if (from !== undefined && to) {
    lookAt(to.column, to.kind);
    if (to.kind) open();
  }
}

/* Show what a drag encloses; null: it is over. */
function brush(column) {
  const box = layer?.cursor.querySelector(".brush");
  if (column === null) drag = null;
  else drag.over = column;
  if (!box) return;
  box.classList.toggle("shown", drag !== null);
  if (drag === null) return;
  const { left, top, width, height } = look.place;
  const step = width / columns().length;
  const [low, high] = [Math.min(drag.column, column), Math.max(drag.column, column)];
  place(box, draw("rect", { x: left + low * step, y: top, width: (high - low + 1) * step, height }));
}

function lookAt(column, kind) {
  if (at.column === column && at.kind === kind) return;
  at = { column, kind };
  mark();
  showCard();
}

/* A crosshair at what is looked at, and its bytes at the axis. */
function mark() {
  const [box, cross, level] = layer.cursor.children;
  layer.cursor.classList.toggle("shown", at.column !== null);
  for (const one of layer.stacks.children) one.classList.toggle("looked", at.column !== null && one.dataset.kind === at.kind);
  if (at.column === null) return;
  const { left, top, width, height, top_bytes: most, low_bytes: least } = look.place;
  const step = width / columns().length;
  const x = left + at.column * step;
  const bytes = columns()[at.column].bytes;
  const y = top + height * (1 - (bytes - least) / (most - least));
  place(box, draw("rect", { x, y: top, width: step, height }));
  place(cross, draw("path", { d: `M${left} ${y.toFixed(2)}H${left + width}M${x + step / 2} ${top}V${top + height}` }));
  level.textContent = gib(bytes);
  const end = x > left + width / 2;
  place(level, draw("text", { x: end ? left + 6 : left + width - 6, y: y - 5 }));
  level.setAttribute("text-anchor", end ? "start" : "end");
}

/** Show what the instant that is looked at holds, or the peak. */
export function showCard() {
  const index = at.column ?? seen().peak;
  const whole = columns()[seen().peak].bytes >= look.columns[look.peak].bytes;
  card.replaceChildren(...cardOf({ ...look, columns: columns() }, index, at.kind, { peak: seen().peak, whole, ask: explain }));
}

/* ---- a part of the step ---- */

function partWords() {
  const [first, last] = [columns()[0], columns().at(-1)].map((one) => one.title.split(": ")[0]);
  return `Enlarged: ${first === last ? first : `${first} to ${last}`}.`;
}

/* Enlarge what some columns stand for. */
function enclose(from, to) {
  show([columns()[from].first + 1, columns()[to].last + 1]);
}

/* Show so many times as much of the step, with what is looked at in its middle. */
function zoom(times) {
  if (!look.stretches) return;
  const shown = columns();
  const [first, last] = [shown[0].first + 1, shown.at(-1).last + 1];
  const middle = shown[at.column ?? seen().peak].first + 1;
  const count = Math.min(look.stretches, Math.max(1, Math.round((last - first + 1) * times)));
  const from = Math.min(Math.max(1, middle - Math.floor(count / 2)), look.stretches - count + 1);
  show([from, from + count - 1]);
}

function show(wanted) {
  const all = wanted === null || wanted[1] - wanted[0] + 1 >= look.stretches;
  const before = enlarged();
  part = all ? null : wanted;
  if (before === enlarged()) return;
  at = NONE;
  enlarge();
}

/* ---- keys ---- */

function stepped(key) {
  const column = at.column ?? seen().peak;
  const last = columns().length - 1;
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
  else if (event.key === "+" || event.key === "=") zoom(1 / 3);
  else if (event.key === "-") zoom(3);
  else if (event.key === "0") show(null);
  else if (event.key === "Escape") lookAt(null, null);
  else return;
  event.preventDefault();
}

function placeWords() {
  const one = columns()[at.column];
  const here = slice();
  if (here) {
    const largest = here.entries.slice(0, 3).map(([name, bytes]) => `${name} ${gib(bytes)}`);
    return `${look.titles[here.kind]}: ${gib(here.bytes)} GiB at ${one.title}. Largest: ${largest.join(", ")}.`;
  }
  const kinds = filled(at.column).map((each) => `${look.titles[each.kind]} ${gib(each.bytes)}`);
  const highest = at.column === seen().peak ? ", the highest" : "";
  return `${at.column + 1} of ${columns().length}${highest}, ${one.title}: ${gib(one.bytes)} GiB. ${kinds.join(", ")}.`;
}

function open() {
  const one = columns()[at.column ?? seen().peak];
  const here = slice();
  explain({ title: `${here ? look.titles[here.kind] : "Everything"} at ${one.title}`, kind: here?.kind, instant: one.title });
}

/* The ledger has fewer instants than the step has layers: elsewhere all of a kind is explained. */
function explain(asked) {
  ask(look.instants.includes(asked.instant) ? asked : { ...asked, instant: undefined });
}
