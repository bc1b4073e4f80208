/* The page /plan: asks for plans and shows them; plans.js opens and compares them. The address has
   the question, so that it can be sent to others. */

import * as api from "./api.js";
import { fragment, make } from "./words.js";

const form = document.getElementById("question");
const result = document.getElementById("result");
const problems = document.getElementById("problems");
const busy = document.getElementById("busy");
const NUMBERS = ["gpus", "seq_len", "global_batch", "price"];
let last = null; // the request under way

/** What the form asks, without what is left empty. */
function question() {
  const given = [...new FormData(form)].filter(([, value]) => value.trim() !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, NUMBERS.includes(name) ? Number(value) : value.trim()]));
}

async function ask() {
  last?.abort();
  last = new AbortController();
  const { signal } = last;
  const asked = question();
  const button = form.querySelector("button");
  history.replaceState(null, "", `?${new URLSearchParams(asked)}`);
  problems.replaceChildren();
  result.classList.add("stale");
  button.textContent = "Planning…";
  busy.textContent = "Evaluating every set-up, then the best ones in full…";
  try {
    const answer = await api.post("/api/plan", asked, { query: { page: true }, signal });
    result.replaceChildren(fragment(answer.html));
  } catch (error) {
    if (error.name === "AbortError") return;
    result.replaceChildren();
    problems.replaceChildren(...(error.problems ?? [error.message]).map((one) => make("p", {}, one)));
  }
  busy.textContent = "";
  result.classList.remove("stale");
  button.textContent = "Plan";
}

/** Fill the lists of names, and the form from the address. */
async function start() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  const options = (rows) => rows.map(([value, label]) => make("option", { value, label }));
  try {
    const [presets, { gpus }, engines] = await Promise.all(["/api/presets", "/api/gpus", "/api/engines"].map((path) => api.get(path)));
    document.getElementById("models").append(...options(Object.entries(presets).map(([name, row]) => [name, row.display_name])));
    document.getElementById("cards").append(...options(gpus.map((row) => [row.name, row.title])));
    form.elements.engine.append(...Object.entries(engines).map(([name, title]) => make("option", { value: name }, title)));
  } catch (error) {
    problems.replaceChildren(make("p", {}, error.message));
  }
  const given = new URLSearchParams(location.search);
  for (const [name, value] of given) {
    const field = form.elements[name];
    if (field) field.value = value;
  }
  if (given.has("model")) ask();
}

start();
