/* The page begins here: the state from the link, the form, and what it comes to. */

import { startForm } from "./form.js";
import { current, setView, start, subscribe, VIEWS } from "./state.js";
import { make } from "./words.js";

function viewSwitch() {
  const box = document.getElementById("views");
  const inputs = Object.entries(VIEWS).map(([name, view]) => {
    const input = make("input", { type: "radio", name: "view", value: name, onchange: () => setView(name) });
    box.append(make("label", {}, input, view.title));
    return input;
  });
  const show = () => inputs.forEach((input) => (input.checked = input.value === current().view));
  subscribe(show);
  show();
}

start();
viewSwitch();
startForm();
