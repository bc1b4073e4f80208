/* Sharing: the link is the state, so that it shows the same to whoever opens it. */

import { encode } from "./link.js";
import { request, setups, current } from "./state.js";
import { command, copy, make } from "./words.js";

/** The page's address with its state. */
export function link() {
  return `${location.origin}${location.pathname}#${encode(setups())}`;
}

/** The button that copies the link. */
export function shareButton() {
  const label = make("span", { class: "label" }, "Share");
  const button = make("button", { type: "button", class: "button", title: "Copy a link that shows exactly this" }, label);
  button.addEventListener("click", () => copy(link(), "link", button));
  return button;
}

/** The run file as text. */
export function runText() {
  return `${JSON.stringify(request(current()), null, 2)}\n`;
}

/** The command line of the current set-up. */
export function commandText() {
  return command(request(current()));
}
