/* What if: changes one click away, each with what it saves before it is clicked. */

import { once } from "./once.js";
import { apply, current } from "./state.js";
import { count, make, saving, say } from "./words.js";

const FEW = 6; // shown before “more”

let list = null;
let all = false; // whether every change is shown
const question = once("/api/what-ifs", show, (error) => list.replaceChildren(make("p", { class: "soft" }, error.message)));

/** Where chips are shown. */
export function mountChips(element) {
  list = element;
}

/** Ask what could be changed of a run; its look says whether it fits now. */
export function showChips(look, setup) {
  question.ask(setup, look);
}

/** The run changed: what is shown was for another one, until the new answer is there. */
export function staleChips() {
  list.classList.toggle("stale", !question.fresh());
  list.inert = list.classList.contains("stale");
}

function show({ changes }, setup, look) {
  list.classList.remove("stale");
  list.inert = false;
  draw(changes, look.result, setup);
}

function draw(changes, result, setup) {
  const wanted = all ? changes : changes.slice(0, FEW);
  const chips = wanted.map((one) => make("li", {}, chip(one, result, setup)));
  const rest = changes.length - wanted.length;
  const more = () => {
    all = true;
    draw(changes, result, setup);
    list.querySelectorAll("button")[FEW]?.focus();
  };
  if (rest > 0) chips.push(make("li", {}, make("button", { type: "button", class: "more", onclick: more }, `${rest} more`)));
  const none = make("p", { class: "soft" }, "No single change saves much.");
  list.replaceChildren(chips.length ? make("ul", { class: "chips" }, chips) : none);
}

function chip(one, result, setup) {
  const tone = one.fits ? (result.fits_on_gpu ? "" : "helps") : one.verdict === "cannot_tell" ? "open" : "short";
  const settings = one.settings.join(", ");
  const use = () => {
    if (list.classList.contains("stale") || current().view !== setup.view) return;
    apply(one.settings);
    say(`${one.title} is set. Undo takes it back.`);
  };
  return make(
    "button",
    { type: "button", class: `chip ${tone}`, title: settings, onclick: use },
    make("span", { class: "chip-title" }, one.title),
    make("span", { class: "chip-gain" }, gain(one, result)),
    one.cost ? make("span", { class: "chip-cost" }, one.cost) : "",
  );
}

/* −11.90 GiB, then fits; a server's change says how many users it then serves. */
function gain(one, result) {
  if (one.kv_tokens && result.serving) {
    const users = one.users === 1 ? "1 user" : `${count(one.users)} users`;
    return `${users} at ${count(one.context)} tokens${result.fits_on_gpu ? "" : ", then fits"}`;
  }
  const same = one.verdict === result.verdict;
  return saving(one.saves_bytes) + (same && one.fits ? "" : `, ${same ? "still" : "then"} ${one.verdict.replaceAll("_", " ")}`);
}
