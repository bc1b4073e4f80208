/* The result: the picture first, what it says beside it, then everything behind it. */

import { mountChips, showChips, staleChips } from "./chips.js";
import { mountCompare, noteLook } from "./compare.js";
import { explains, openExplanation } from "./explain.js";
import { again, redrawn, resized, start } from "./live.js";
import { enlarged, mountPicture, showCard, showPart, showPicture } from "./picture.js";
import { mountRoom, showRoom, staleRoom } from "./room.js";
import { subscribe } from "./state.js";
import { copy, fragment, make, modelName, say } from "./words.js";

const NARROWEST = 320; // of a picture; on smaller screens it is scaled
const WIDEST = 1600;

/* Sections behind the picture: the part that the service makes, its title. Those that are closed
   are only filled when they are opened, so that a redraw has less to do. */
const SECTIONS = [
  ["room", "How many users, at which context"],
  ["start", "Command to start it"],
  ["speed", "Speed: expected, and the upper bound"],
  ["breakdown", "Memory at the peak"],
  ["stages", "Pipeline stages"],
  ["phases", "From loading to saving: GPU and host RAM"],
  ["remarks", "Assumptions and warnings"],
  ["setup", "The set-up"],
  ["ledger", "Every entry at the peak, with its source", "closed"],
  ["instants", "Every instant as a table", "closed"],
];

const WAITS = new Set(["instants"]); // parts that come with the replay, and stay until then
const spots = {}; // part name -> the element that holds it
const filled = new Map(); // part name -> the HTML that is in it
let root = null;
let status = null; // a quiet mark while the replay is under way
let notice = null; // why the result is not of the newest state
let look = null;
let width = NARROWEST; // of the picture, as wide as its place
const known = new Map(); // the last replay's figures by name, shown until the next is there

/** Put the result into an element, and keep it up to date. */
export function mountResult(element) {
  root = element;
  const plot = make("div", { class: "plot" });
  const card = make("div", { class: "card" });
  const tools = make("div", { class: "zoom", hidden: true });
  const compare = make("section", { class: "compare", "aria-labelledby": "h-compare", hidden: true });
  const chips = make("div", { class: "chip-list" });
  spots.verdict = make("div", {});
  spots.numbers = make("div", { class: "numbers-holder" });
  spots.patterns = make("div", { class: "patterns" });
  status = make("p", { class: "status" });
  notice = make("div", { class: "notice", role: "status", hidden: true });
  spots.pace = make("div", { class: "part part-pace" });
  const pace = make("section", { class: "pace-holder", hidden: true }, make("h2", {}, "Speed"), spots.pace);
  const room = make("p", { class: "room", hidden: true });
  const figure = make("figure", { class: "picture" }, tools, plot, card);
  const whatIf = make("div", { class: "what-if" }, make("h2", {}, "What if"), chips);
  const numbers = make("div", { class: "beside" }, make("div", { class: "numbers-head" }, make("h2", {}, "Memory"), status), spots.numbers);
  const top = make(
    "section",
    { class: "top", "aria-labelledby": "h-step" },
    make("h2", { id: "h-step", class: "hidden" }, "Memory of one GPU over time"),
    make("div", { class: "left" }, figure, whatIf),
    make("div", { class: "right" }, make("div", { class: "verdict-holder" }, notice, spots.verdict, room), pace, numbers),
  );
  root.classList.add("report", "result", "empty");
  root.append(spots.patterns, compare, top, ...SECTIONS.map(section));
  root.addEventListener("click", clicked);
  mountChips(chips);
  mountRoom(room);
  mountCompare(compare);
  mountPicture(plot, card, tools, openExplanation, redrawn);
  subscribe(staleChips);
  subscribe(staleRoom);
  const measured = () => (width = Math.min(WIDEST, Math.max(NARROWEST, Math.floor(plot.clientWidth))));
  new ResizeObserver(() => (measured(), resized())).observe(plot);
  measured();
  start({ width: () => width, part: enlarged, partDrawn, drawn, old, settled, replayed: afterReplay, undecided, busy, failed });
}

function section([name, title, closed]) {
  const heading = make("h2", { id: `h-${name}` }, title);
  const body = make("div", { class: `part part-${name}` });
  spots[name] = body;
  const labelled = { "aria-labelledby": `h-${name}`, hidden: true };
  if (!closed) return make("section", { class: name === "setup" ? "set-up" : null, ...labelled }, heading, body);
  const fold = make("details", { class: "fold", ontoggle: () => fill(name) }, make("summary", {}, heading), body);
  return make("section", { class: "folded", ...labelled }, fold);
}

/* ---- what the service answered ---- */

/* At once: what is seen first. */
function drawn(next) {
  look = next;
  root.classList.remove("refused", "empty");
  root.classList.toggle("serves", look.result.serving !== null);
  notice.hidden = true;
  if (!spots.patterns.firstChild) spots.patterns.append(fragment(look.parts.patterns));
  explains(look);
  showPicture(look);
  fill("verdict");
  fill("pace");
  document.dispatchEvent(new CustomEvent("look", { detail: look }));
}

/* The set-up is another one, until the next answer. */
function old(is) {
  root.classList.toggle("old", is);
  spots.verdict.parentElement.setAttribute("aria-busy", String(is));
}

/* Then the rest, unless a newer answer is there already. */
function settled(shown, setup) {
  if (look === shown) rest(setup);
}

function rest(setup) {
  showCard();
  noteLook(setup, look);
  fill("numbers");
  for (const [name] of SECTIONS) fill(name);
}

function afterReplay(next, setup) {
  look = next ?? look;
  if (next) showPicture(look);
  fill("verdict");
  rest(setup);
  explains(look);
  const words = [".needs", ".says"].map((name) => spots.verdict.querySelector(name).textContent).join(", ");
  say(words);
  document.title = `${modelName(setup.run)} ${words}`;
  showChips(look, setup);
  showRoom(look, setup);
}

/* Without a replay the ledger's bounds are all that is known. */
function undecided() {
  const waits = spots.verdict.querySelector(".small .pending");
  if (!waits) return;
  waits.replaceWith("PyTorch’s allocator could not be replayed.");
  const says = spots.verdict.querySelector(".about .says");
  if (says) says.textContent = "? cannot tell";
  filled.delete("verdict");
}

function partDrawn(next) {
  look = next;
  showPart(look);
}

function busy(words) {
  status.textContent = words;
}

/* The last good result stays, dimmed; a service that is away is asked again on a click. */
function failed(error) {
  root.classList.toggle("refused", look !== null);
  busy("");
  const waits = !error.status || error.status >= 500;
  const retry = waits ? make("button", { type: "button", class: "button", onclick: again }, "Try again") : "";
  const problems = (error.problems ?? [error.message]).map((one) => make("p", {}, one));
  const before = waits ? "The result below is of the set-up before." : "The result below is of the last valid set-up.";
  const kept = look ? make("p", { class: "soft" }, before) : "";
  notice.replaceChildren(make("p", { class: "says" }, waits ? "✗ no answer" : "✗ invalid set-up"), ...problems, kept, retry);
  notice.hidden = false;
}

/* ---- parts ---- */

function fill(name) {
  const spot = spots[name];
  const html = look?.parts[name] ?? "";
  if (look && !(name in look.parts) && filled.has(name) && WAITS.has(name)) return;
  const fold = spot.closest("details.fold");
  if (name in TITLED || name === "pace") spot.closest("section").hidden = !html;
  const wanted = fold && !fold.open ? "" : html;
  if (filled.get(name) === wanted) return;
  filled.set(name, wanted);
  const content = fragment(wanted);
  for (const one of content.querySelectorAll("thead th:empty")) one.replaceWith(make("td", { class: one.className }));
  for (const one of content.querySelectorAll(".scroll")) one.setAttribute("tabindex", "0");
  LIVELY[name]?.(content);
  spot.replaceChildren(content);
}

const TITLED = Object.fromEntries(SECTIONS);

/* What makes a part more than text. */
const LIVELY = {
  numbers: (content) => {
    keepFigures(content);
    foldFigures(content);
  },
  breakdown: (content) => explainRows(content, "tbody th", kindOf),
  ledger: (content) => {
    const fold = content.firstElementChild; // the report's own; here the section folds
    fold?.replaceWith(...[...fold.children].slice(1));
    explainRows(content, "tbody th", nameOf);
  },
  start: addCopy,
};

/* Figures that only a replay knows: the old one, dimmed, until the new one is there. */
function keepFigures(content) {
  for (const one of content.querySelectorAll(".numbers > div")) {
    const name = one.querySelector("dt").textContent;
    const absent = one.querySelector(".pending");
    if (!absent) known.set(name, one.querySelector("dd").firstChild.textContent);
    else if (known.has(name)) absent.replaceWith(make("span", { class: "old", "aria-busy": "true" }, `${known.get(name)} GiB`));
  }
}

let unfolded = false; // whether the figures behind the first two are shown

/* The first two figures are what people compare; the others fold. */
function foldFigures(content) {
  const rest = [...content.querySelectorAll(".numbers > div")].slice(2);
  const fold = make("details", { class: "figures", open: unfolded, ontoggle: () => (unfolded = fold.open) }, make("summary", {}, "More figures"), make("dl", { class: "numbers" }, rest));
  content.append(fold);
}

function kindOf(cell) {
  const found = cell.querySelector(".swatch rect")?.getAttribute("fill").match(/#p-(\w+)/);
  const none = cell.parentElement.querySelector('.num [title="0 bytes"]');
  return found && !none ? { title: `${cell.textContent} at the peak`, kind: found[1], instant: look.result.peak_instant } : null;
}

function nameOf(cell) {
  const name = cell.firstChild.textContent;
  return { title: name, name };
}

/* The first cell of each row becomes a button that explains it. */
function explainRows(content, cells, what) {
  for (const cell of content.querySelectorAll(cells)) {
    const asked = what(cell);
    if (!asked) continue;
    const button = make("button", { type: "button", class: "explains", title: "Where it comes from", "data-asked": JSON.stringify(asked) });
    const moved = [...cell.childNodes].filter((one) => one.nodeName !== "DETAILS");
    cell.prepend(button);
    button.append(...moved);
  }
}

function clicked(event) {
  const button = event.target.closest("[data-asked]");
  if (button) openExplanation(JSON.parse(button.dataset.asked));
}

function addCopy(content) {
  const text = content.querySelector("code")?.textContent ?? "";
  const button = make("button", { type: "button", class: "button copy" }, make("span", { class: "label" }, "Copy"));
  button.addEventListener("click", () => copy(text, "command", button));
  content.append(button);
}
