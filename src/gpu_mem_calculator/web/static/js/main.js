/* The page begins here: the state from the link, the form, and what it comes to. */

import { mountActions } from "./actions.js";
import { startForm } from "./form.js";
import { mountResult } from "./result.js";
import { current, setView, start, subscribe, VIEWS } from "./state.js";
import { make } from "./words.js";

/* Train or serve. */
function viewSwitch(box) {
  const inputs = Object.entries(VIEWS).map(([name, view]) => {
    const input = make("input", { type: "radio", name: "view", value: name, onchange: () => setView(name) });
    box.append(make("label", {}, input, view.title));
    return input;
  });
  const show = () => inputs.forEach((input) => (input.checked = input.value === current().view));
  subscribe(show);
  show();
}

/* The verdict's line again at the bottom of a narrow screen, while the verdict is out of sight. */
function glance(result, strip) {
  const seen = new IntersectionObserver(([entry]) => (strip.hidden = entry.isIntersecting));
  let watched = null;
  const copy = () => {
    const verdict = result.querySelector(".verdict");
    const says = verdict?.querySelector(".says");
    if (!says) return;
    const sizes = verdict.querySelector(".needs")?.textContent.match(/(about [\d.,<]+ to )?[\d.,<]+ of [\d.,]+ GiB/)?.[0];
    const pace = result.querySelector(".pace-holder:not([hidden]) dd")?.textContent.replace(/ \(.*/, "");
    strip.className = verdict.className.replace("verdict", "").trim();
    strip.replaceChildren(make("span", {}, pace ?? sizes ?? ""), says.cloneNode(true));
    if (watched !== verdict) {
      seen.disconnect();
      seen.observe(verdict);
      watched = verdict;
    }
  };
  new MutationObserver(copy).observe(result, { childList: true, subtree: true, characterData: true });
}

/* The set-up in words, on paper in the place of the form. */
function onPaper(form, list) {
  const words = (input) => (input.selectedOptions ? input.selectedOptions[0]?.textContent : input.value) ?? "";
  addEventListener("beforeprint", () => {
    const inputs = form.querySelectorAll("#model, #card, .field.set input[type=text], .field.set select");
    const rows = [...inputs].flatMap((one) => [make("dt", {}, one.labels[0]?.textContent ?? ""), make("dd", {}, words(one))]);
    list.replaceChildren(...rows, make("dt", {}, "Link"), make("dd", { class: "whole" }, location.href));
  });
}

const byId = (id) => document.getElementById(id);
start();
viewSwitch(byId("views"));
glance(byId("result"), byId("glance"));
mountActions(byId("actions"));
mountResult(byId("result"));
onPaper(byId("form"), byId("printed"));
startForm();
