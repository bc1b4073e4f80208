/* The buttons above the page: undo and redo, compare, share, save. */

import { downloadMenu } from "./download.js";
import { plansOf } from "./plan_link.js";
import { shareButton } from "./share.js";
import { addSetup, canRedo, canUndo, current, MOST, redo, setups, subscribe, undo } from "./state.js";
import { make, say } from "./words.js";

const APPLE = /Mac|iPhone|iPad/.test(navigator.platform);
const KEY = APPLE ? "⌘" : "Ctrl+";

/** Put the buttons into an element. */
export function mountActions(element) {
  const back = icon("↶", "Undo", `${KEY}Z`, undo);
  const forth = icon("↷", "Redo", APPLE ? "⇧⌘Z" : "Ctrl+Shift+Z", redo);
  const add = make("button", { type: "button", class: "button", onclick: added }, "Add to compare");
  const page = document.querySelector('nav a[href^="/plan"], nav a[href^="plan"]'); // none where nothing answers it
  const plan = make("a", { class: "button", title: "Every set-up of this model that fits on these GPUs, the best first" }, "Plan");
  const links = page ? [page, plan] : [];
  element.append(back, forth, add, ...links.slice(1), shareButton(), downloadMenu());
  document.addEventListener("keydown", pressed);
  const show = () => {
    back.disabled = !canUndo();
    forth.disabled = !canRedo();
    for (const link of links) link.href = plansOf(current());
    add.disabled = setups().length >= MOST;
    add.title = add.disabled ? `${MOST} set-ups are the most` : "Keep this set-up and change a copy of it";
  };
  subscribe(show);
  show();
}

function icon(sign, name, keys, act) {
  const label = { type: "button", class: "button icon", "aria-label": name, title: `${name} (${keys})`, onclick: act };
  return make("button", label, make("span", { "aria-hidden": "true" }, sign));
}

function added() {
  addSetup();
  say(`Set-up ${setups().length} is a copy; changes now go there.`);
}

/* Text fields keep their own undo. */
function pressed(event) {
  const typing = event.target.closest?.("textarea, [contenteditable], input:not([type=range], [type=checkbox], [type=radio], [type=file])");
  if (!(event.ctrlKey || event.metaKey) || event.altKey || typing || document.querySelector("dialog[open]")) return;
  const key = event.key.toLowerCase();
  if (key === "z") (event.shiftKey ? redo : undo)();
  else if (key === "y" && !APPLE) redo();
  else return;
  event.preventDefault();
}
