/* From a set-up to the question for plans, and from a plan to the calculator. */

import { encode } from "./link.js";

const LAST = "gpu-mem-calc.plan"; // the address of the plans that were looked at last
const SAME = ["model", "gpus", "gpu", "serve", "seq_len", "global_batch", "context", "users"]; // what a set-up says of a question

/* The other pages by the links of this one, which are others where the pages are plain files; no plans there. */
const links = [...document.querySelectorAll("header.site nav a")];
const [home, plans] = ["Calculator", "Plan"].map((name) => links.find((one) => one.textContent === name)?.getAttribute("href"));

const times = (...sizes) => sizes.reduce((product, one) => product * (one ?? 1), 1);

/** What a set-up of the calculator asks of the planner. */
export function questionOf({ view, run }) {
  const { model = {}, hardware = {}, training = {}, parallelism: own = {}, inference = {} } = run;
  const keys = Object.keys(model);
  const name = keys.length > 1 ? JSON.stringify(model) : model.name ?? model.num_parameters;
  const served = view === "serve";
  const split = served ? inference : own;
  const together = times(split.tensor_parallel_size, split.pipeline_parallel_size, split.context_parallel_size);
  const gpus = hardware.num_gpus ?? times(together, split.data_parallel_size);
  const asked = { model: name, gpus, gpu: hardware.gpu };
  if (served) return { ...asked, serve: "any", context: inference.max_seq_len, users: inference.batch_size };
  const ranks = split.data_parallel_size ?? Math.max(1, Math.floor(gpus / together));
  return { ...asked, seq_len: training.seq_len, global_batch: times(training.batch_size, training.gradient_accumulation_steps, ranks) };
}

/** The address of the plan page with a question; `more` are further words of it. */
export function planAddress(question, more = {}) {
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : value);
  const given = Object.entries({ ...question, ...more }).filter(([, value]) => value !== undefined && value !== "");
  return `${plans}?${new URLSearchParams(given.map(([name, value]) => [name, text(value)]))}`;
}

/** Remember what the plan page shows. */
export function notePlan(question, address) {
  try {
    sessionStorage.setItem(LAST, JSON.stringify({ question, address }));
  } catch {
    /* a browser that keeps nothing: the way back asks the question of the set-up */
  }
}

/** Where the plans of a set-up are: those looked at last, if they answer its question. */
export function plansOf(setup) {
  const question = questionOf(setup);
  try {
    const last = JSON.parse(sessionStorage.getItem(LAST));
    if (last && SAME.every((name) => String(last.question[name]) === String(question[name]))) return last.address;
  } catch {
    /* nothing is remembered */
  }
  return planAddress(question);
}

/** The address of the calculator with some runs. */
export function calculatorAddress(runs) {
  return `${home}#${encode(runs.map((run) => ({ view: run.inference ? "serve" : "train", run })))}`;
}
