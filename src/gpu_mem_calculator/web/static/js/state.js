/* The state of the page: one to four set-ups, each a view of a run file; undo, and the link.

   Every change makes new objects, so what current() or setups() gave before stays as it was. */

import { BESIDE, READ_FOR, decode, encode, opened, parseValue, pruned, valueAt, withValue } from "./link.js";

/* The views: the sections that go into a request, keys that say nothing there, and what a run is
   given when it is first looked at that way. A server is spread over the GPUs, unless its own
   parallel sizes say how. */
const ONE_GPU = /^(transformers|huggingface)$/; // servers that are modelled on one GPU
const SPLIT = ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"];

/** Whether a server's own parallel sizes say on how many GPUs it runs. */
export const splits = ({ inference = {} }) => SPLIT.some((key) => inference[key] !== undefined);

export const VIEWS = {
  train: {
    title: "Train",
    sections: ["model", "hardware", "training", "parallelism", "engine"],
    without: () => [],
    start: { engine: { type: "fsdp" } },
  },
  serve: {
    title: "Serve",
    sections: ["model", "hardware", "inference"],
    without: (run) => [...(splits(run) || ONE_GPU.test(run.inference?.engine ?? "") ? ["hardware.num_gpus"] : []), "hardware.num_nodes"],
    start: { inference: { engine: "vllm" } },
    needs: "inference", // without it a run is one of training
  },
};

export const MOST = 4; // set-ups at once
const LISTED = 8; // problems of a link that are shown
const STEPS = 200; // changes that can be taken back
const PAUSE = 1000; // milliseconds after which the same setting is a new step
const KEPT = "gpu-mem-calc.link"; // the last state, for a page opened without a link

const FIRST = [
  {
    view: "train",
    run: {
      model: { name: "llama3-8b" },
      hardware: { gpu: "h100-80gb-sxm", num_gpus: 8 },
      ...VIEWS.train.start,
      ...VIEWS.serve.start,
    },
  },
];

let now = { setups: FIRST, active: 0 };
let before = []; // states to go back to
let after = []; // states to go forward to
let last = { what: null, when: 0 }; // the last change, to join a slider's moves
let unread = []; // why the link could not be read, a sentence each
let waiting = false;
const listeners = new Set();

export const setups = () => now.setups;
export const active = () => now.active;
export const current = () => now.setups[now.active];
/** Whether the set-up is still the example that the page opens with. */
export const untouched = () => JSON.stringify(current()) === JSON.stringify(FIRST[0]);
export const canUndo = () => before.length > 0;
export const canRedo = () => after.length > 0;
/** Why the page's link could not be read; empty when it could. */
export const linkProblems = () => unread;

/** What a setting of the current set-up is, or undefined. */
export const get = (path) => valueAt(current().run, path);

/* Whether the command that a set-up was read from is of the view that it is looked at in. */
const readHere = ({ view, run }) => (run[READ_FOR] ?? view) === view;

/** What the current set-up was read from, and what was assumed in reading it. */
export const notes = () => (readHere(current()) && Array.isArray(current().run.notes) ? current().run.notes : []);

/** The run file to send for a set-up: its view's sections, without those that are empty. */
export function request(setup) {
  const view = VIEWS[setup.view];
  const names = [...view.sections, ...(readHere(setup) ? BESIDE : [])];
  let run = Object.fromEntries(names.map((name) => [name, setup.run[name] ?? {}]));
  for (const path of view.without(setup.run)) run = withValue(run, path, undefined);
  return pruned(run);
}

/** Change one setting of the current set-up; undefined takes it away. */
export function set(path, value) {
  changeRun(withSetting(current().run, path, value), path);
}

/** Change several settings at once, "section.key=value" each; null takes one away. */
export function apply(settings) {
  let run = current().run;
  for (const one of settings) {
    const mark = one.indexOf("=");
    run = withSetting(run, one.slice(0, mark), parseValue(one.slice(mark + 1)));
  }
  changeRun(run, null);
}

/** Show the current set-up in another view; what that view needs and lacks is put in. */
export function setView(view) {
  if (view === current().view || !VIEWS[view]) return;
  const needed = Object.entries(VIEWS[view].start).filter(([name]) => !current().run[name]);
  const run = { ...current().run, ...Object.fromEntries(needed) };
  changeSetups(replaced({ view, run }), now.active, null);
}

/** Put another run file in the place of the current one; its sections choose the view. */
export function replaceRun(run) {
  changeSetups(replaced(setupOf(run)), now.active, null);
}

/** Put several run files in the place of all set-ups, as many as there can be. */
export function replaceAll(runs) {
  changeSetups(runs.slice(0, MOST).map(setupOf), 0, null);
}

/* A run file's set-up; what stands beside its sections is of its own view. */
function setupOf(run) {
  const view = run.inference ? "serve" : "train";
  const read = BESIDE.some((name) => run[name]) ? { [READ_FOR]: view } : {};
  return { view, run: pruned({ ...run, ...read }) };
}

/** Begin anew with the example, in the same view. */
export function reset() {
  changeSetups(replaced({ ...FIRST[0], view: current().view }), now.active, null);
}

/** Add a copy of the current set-up beside it, and turn to it. */
export function addSetup() {
  if (now.setups.length >= MOST) return;
  const at = now.active + 1;
  const list = [...now.setups.slice(0, at), current(), ...now.setups.slice(at)];
  changeSetups(list, at, null);
}

/** Take a set-up away; the last one stays. */
export function removeSetup(index) {
  if (now.setups.length < 2 || !now.setups[index]) return;
  const list = now.setups.filter((_, i) => i !== index);
  const at = index < now.active ? now.active - 1 : Math.min(now.active, list.length - 1);
  changeSetups(list, at, null);
}

/** Turn to another set-up; not a step that can be taken back. */
export function activate(index) {
  if (!now.setups[index] || index === now.active) return;
  now = { ...now, active: index };
  last = { what: null, when: 0 };
  changed();
}

/** Take the last change back. */
export function undo() {
  move(before, after);
}

/** Make the change again that was taken back. */
export function redo() {
  move(after, before);
}

/** Be called once after each batch of changes; gives the function that ends it. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/* A run with a value; one that the command it was read from left open is so no more. */
function withSetting(run, path, value) {
  const gone = value === undefined || value === null;
  const open = Array.isArray(run.limits) && !gone ? { limits: run.limits.filter((one) => !one.settle?.startsWith(`--set ${path}=`)) } : {};
  return withValue({ ...run, ...open }, path, value);
}

function changeRun(run, what) {
  changeSetups(replaced({ ...current(), run: pruned(run) }), now.active, what);
}

function replaced(setup) {
  return now.setups.map((one, i) => (i === now.active ? setup : one));
}

function changeSetups(list, index, what) {
  if (encode(list) === encode(now.setups) && index === now.active) return;
  const joins = what !== null && what === last.what && Date.now() - last.when < PAUSE;
  if (!joins) before = [...before, now].slice(-STEPS);
  after = [];
  now = { setups: list, active: index };
  last = { what, when: Date.now() };
  unread = [];
  changed();
}

function move(from, to) {
  if (!from.length) return;
  to.push(now);
  now = from.pop();
  last = { what: null, when: 0 };
  changed();
}

function changed() {
  if (waiting) return;
  waiting = true;
  queueMicrotask(() => {
    waiting = false;
    noteLink();
    for (const listener of [...listeners]) listener();
  });
}

/* ---- the link ---- */

let timer = 0;

/* Browsers allow only so many changes of the address in a while, so a slider's moves share one. */
function noteLink() {
  clearTimeout(timer);
  timer = setTimeout(writeLink, 120);
}

function writeLink() {
  const hash = encode(now.setups, now.active);
  if (location.hash !== `#${hash}`) history.replaceState(null, "", `#${hash}`);
  try {
    localStorage.setItem(KEPT, hash);
  } catch {
    /* a browser that keeps nothing: the link alone has the state */
  }
}

function kept() {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

/* The set-ups of a link, and every problem of it; with a problem there are none. */
function readable(hash) {
  const { setups: found, problems } = decode(hash);
  const known = [...new Set(Object.values(VIEWS).flatMap((view) => view.sections)), ...BESIDE, READ_FOR];
  const views = new Set(found.map((one) => one.view).filter((view) => !VIEWS[view]));
  const sections = new Set(found.flatMap((one) => Object.keys(one.run)).filter((name) => !known.includes(name)));
  const all = [
    ...problems,
    ...[...views].map((view) => `“${view}” in the link is not a view; write ${Object.keys(VIEWS).join(" or ")}`),
    ...[...sections].map((name) => `“${name}” in the link is not a section of a run file; write one of ${known.join(", ")}`),
    ...(found.length > MOST ? [`The link has ${found.length} set-ups, and ${MOST} are the most; leave some out`] : []),
  ];
  return { found: all.length ? [] : found.map(whole), problems: all.slice(0, LISTED) };
}

/* A set-up with the section that its view cannot do without. */
function whole({ view, run }) {
  const { needs, start } = VIEWS[view];
  return { view, run: needs && !run[needs] ? { ...run, [needs]: start[needs] } : run };
}

/** Read the page's link, else what was kept, else begin with the example. */
export function start() {
  const linked = location.hash.length > 1;
  const hash = linked ? location.hash : kept();
  const { found, problems } = readable(hash);
  if (found.length) now = { setups: found, active: Math.min(opened(hash), found.length - 1) };
  if (linked) unread = problems;
  addEventListener("hashchange", follow);
  addEventListener("pagehide", writeLink);
  changed();
}

/* Another link in the same page: loaded as one change that can be taken back. */
function follow() {
  if (location.hash === `#${encode(now.setups, now.active)}`) return;
  const { found, problems } = readable(location.hash);
  if (found.length) changeSetups(found, Math.min(opened(location.hash), found.length - 1), null);
  unread = problems;
  if (problems.length) changed();
}
