/* The page /plan: asks for plans and shows them while they are found; plans.js opens and compares
   them. The address has the question and what is open, and this browser keeps the last answers, so
   that neither a link nor the way back searches again without need. */

import * as api from "./api.js";
import { loadFacts } from "./facts.js";
import { PlanForm } from "./plan_form.js";
import { calculatorAddress, notePlan, planAddress } from "./plan_link.js";
import { copy, fragment, make, say } from "./words.js";

const KEPT = "gpu-mem-calc.plans"; // the last answers
const MOST = 3; // of them
const byId = (id) => document.getElementById(id);
const [result, problems, busy, notice] = ["result", "problems", "busy", "notice"].map(byId);

let form = null; // the question
let version = ""; // of the service
let under = null; // the search under way
let shown = null; // {asked, answer}: what is shown
let opened = {}; // the names of the plan that is open and of the one that is kept beside it

/* ---- asking ---- */

async function ask() {
  under?.abort();
  const mine = (under = new AbortController());
  const asked = form.question();
  problems.replaceChildren();
  if (JSON.stringify(asked) !== JSON.stringify(shown?.asked)) opened = {};
  const told = begin(mine);
  const on = {
    progress: ({ text, part }) => told(text, part),
    plan: (answer) => show(asked, answer),
    done: (answer) => finish(asked, answer),
  };
  try {
    await api.stream("/api/plan", asked, on, { query: { page: true }, signal: mine.signal });
  } catch (error) {
    if (under !== mine) return; // another question
    if (error.name === "AbortError") stopped("Cancelled: ");
    else refuse(error.problems ?? [error.message]);
  } finally {
    if (under === mine) end();
  }
}

/** Show that a search is under way; gives the function that says what it does. */
function begin(mine) {
  const since = performance.now();
  const bar = make("progress", { max: 1, value: 0, "aria-label": "How much of the search is done" });
  const words = make("span", { class: "doing" }, "starting the search");
  const clock = make("span", { class: "elapsed" }, "0 s");
  const cancel = make("button", { type: "button", class: "button", onclick: () => mine.abort() }, "Cancel");
  const timer = setInterval(() => (clock.textContent = `${Math.round((performance.now() - since) / 1000)} s`), 500);
  mine.signal.addEventListener("abort", () => clearInterval(timer));
  busy.replaceChildren(bar, words, clock, cancel);
  busy.dataset.timer = timer;
  form.form.querySelector("[type=submit]").textContent = "Plan again";
  say("The search has begun.");
  mark();
  return (text, part) => {
    bar.value = part;
    words.textContent = text;
  };
}

function end() {
  clearInterval(busy.dataset.timer);
  under = null;
  if (busy.querySelector("progress")) busy.replaceChildren();
  mark();
}

/** Cancelled, or at the limit: what is there stays. */
function stopped(why) {
  const told = shown?.partial ? `${why}${soFar(shown.answer)}` : `${why}no set-up was found before.`;
  busy.replaceChildren(make("p", { class: "partial" }, told[0].toUpperCase() + told.slice(1)));
  say(told);
}

function soFar({ plans }) {
  const replayed = plans.filter((one) => one.replayed).length;
  const rest = replayed < plans.length ? `, and ${plans.length - replayed} of these ${plans.length} plans are not replayed` : "";
  return `the list is not complete${rest}.`;
}

function refuse(sentences) {
  problems.replaceChildren(...sentences.map((one) => make("p", {}, form.inWords(one))));
  if (!shown?.partial) {
    shown = null;
    result.replaceChildren();
  }
}

/** The last event: all plans, or why there are not all. */
function finish(asked, answer) {
  if (answer.plans) show(asked, answer);
  if (answer.complete) {
    shown.partial = false;
    keep(asked, answer);
    say(`${answer.plans.length} plans.`);
  } else if (answer.plans) stopped(`${answer.problems.join("; ")}: `);
  else refuse(answer.problems);
}

/* ---- showing ---- */

function show(asked, answer) {
  const focused = document.activeElement?.closest?.("#result [data-plan], #result [data-keep]");
  const again = focused && `${focused.matches(".point") ? ".point" : "button"}${["plan", "keep"].filter((name) => focused.dataset[name]).map((name) => `[data-${name}]`).join("")}`;
  const which = focused && keyOf(focused.dataset.plan ?? focused.dataset.keep);
  shown = { asked, answer, partial: true };
  result.replaceChildren(fragment(answer.html));
  for (const panel of result.querySelectorAll(".plan")) addLink(panel);
  const [open, kept] = [opened.open, opened.compare].map(rankOf);
  const root = result.querySelector(".plans");
  if (open) root.dispatchEvent(new CustomEvent("open-plan", { bubbles: true, detail: { open, kept } }));
  if (again) [...result.querySelectorAll(again)].find((one) => keyOf(one.dataset.plan ?? one.dataset.keep) === which)?.focus();
  mark();
}

const keyOf = (rank) => result.querySelector(`.plan[data-rank="${rank}"]`)?.dataset.key;
const rankOf = (key) => key && result.querySelector(`.plan[data-key="${key}"]`)?.dataset.rank;
const runOf = (rank) => shown.answer.plans.find((one) => String(one.rank) === rank).run;

function addLink(panel) {
  const link = make("a", { class: "button", href: calculatorAddress([runOf(panel.dataset.rank)]) }, "Open in the calculator");
  panel.querySelector("header").append(link);
}

/** A plan was opened, or two are compared: the link has them, and so has the calculator's. */
function follow(event) {
  const { open, kept } = event.detail;
  opened = { open: keyOf(open), compare: kept ? keyOf(kept) : undefined };
  if (kept && kept !== open) {
    const both = calculatorAddress([kept, open].map(runOf));
    result.querySelector("[data-says]").append(" ", make("a", { href: both }, "Compare them in the calculator"));
  }
  note();
}

/** Write the address, and mark an answer to another question than the form's. */
function mark() {
  const other = shown !== null && JSON.stringify(form.question()) !== JSON.stringify(shown.asked);
  result.classList.toggle("stale", other);
  const why = under ? "These plans answer the question before; the new ones are searched." : "The form has changed: these plans answer the question in their title. Press “Plan again” for new ones.";
  const text = other ? why : "";
  if (notice.textContent !== text) notice.textContent = text;
  byId("tools").hidden = shown === null;
  note();
}

function note() {
  const asked = form.question();
  const same = JSON.stringify(asked) === JSON.stringify(shown?.asked);
  const address = planAddress(asked, same ? opened : {});
  history.replaceState(null, "", address);
  if (same) notePlan(asked, address);
}

/* ---- what is kept ---- */

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT) ?? "[]").filter((one) => one.version === version);
  } catch {
    return [];
  }
}

function keep(asked, answer) {
  const others = kept().filter((one) => JSON.stringify(one.asked) !== JSON.stringify(asked));
  try {
    localStorage.setItem(KEPT, JSON.stringify([{ asked, answer, version }, ...others].slice(0, MOST)));
  } catch {
    /* a browser that keeps nothing, or too little: the service is asked again */
  }
}

function save() {
  const { html, ...plans } = shown.answer;
  const address = URL.createObjectURL(new Blob([`${JSON.stringify(plans, null, 2)}\n`], { type: "application/json" }));
  make("a", { href: address, download: "plans.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/* ---- beginning ---- */

async function start() {
  let facts;
  try {
    facts = await loadFacts();
  } catch (error) {
    problems.replaceChildren(...(error.problems ?? [error.message]).map((one) => make("p", {}, one)));
    return;
  }
  version = facts.version;
  form = new PlanForm(byId("question"), facts, mark);
  const words = new URLSearchParams(location.search);
  opened = { open: words.get("open") ?? undefined, compare: words.get("compare") ?? undefined };
  form.fill(words);
  form.form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  const link = byId("copy-link");
  link.addEventListener("click", () => copy(location.href, "link", link));
  byId("save").addEventListener("click", save);
  result.addEventListener("plan-opened", follow);
  document.documentElement.dataset.ready = "true";
  if (!words.has("gpu") && !words.has("model")) return;
  const asked = form.question();
  const known = kept().find((one) => JSON.stringify(one.asked) === JSON.stringify(asked));
  const before = opened;
  if (!known) {
    const search = ask();
    opened = before;
    await search;
    return;
  }
  show(asked, known.answer);
  shown.partial = false;
  busy.replaceChildren("This browser kept these plans from an earlier search.");
  mark();
}

start();
