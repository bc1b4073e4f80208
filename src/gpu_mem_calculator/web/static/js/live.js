/* Asking the service again whenever the state changes: the ledger at once, then the replay.

   One ledger request is under way at a time. A change meanwhile waits until it is drawn and then
   asks for the newest state only, so a dragged slider is drawn as fast as answers come and leaves
   no queue behind; a request that is slow is given up instead. */

import { post } from "./api.js";
import { current, request, subscribe } from "./state.js";

const PAUSE = 150; // milliseconds of rest before the replay is asked for
const SLOW = 250; // milliseconds after which a newer state does not wait for an older answer
const DIM = 100; // milliseconds after which what is drawn is marked as old: a slider does not flicker

let hooks = null;
let ledger = null; // the request under way: {controller, since, wanted}
let replay = null; // the replay's controller
let timer = 0;
let changedAt = 0; // when the state last changed that is not yet drawn
let waiting = false; // a newer state waits for the request under way
let shown = ""; // the request that is drawn
let about = ""; // its view, model and hardware: of another one, what is drawn is old at once
let dimming = 0; // the timer until then
let wide = 0; // and how wide
let needsReplay = false; // whether the ledger left figures open
let refused = false; // the last state was, and the form shows why

/** Begin. `given` has width(), drawn(look), old(is) whether the newest state is another one, settled(look, setup) once that is on the screen,
    replayed(look, setup) with null for no news, partDrawn(look), part(), undecided() where the replay fails, busy(text),
    failed(error). */
export function start(given) {
  hooks = given;
  subscribe(changed);
  changed();
}

/** The picture's room changed: it is scaled at once, and drawn for the new width after a rest. */
export function resized() {
  if (!shown || wide === hooks.width() || ledger) return;
  clearTimeout(timer);
  timer = setTimeout(() => askReplay(current(), true), PAUSE);
}

/** Another part of the step is wanted: its picture alone changes. */
export function redrawn() {
  if (ledger) return; // whose answer is followed by a replay
  clearTimeout(timer);
  askReplay(current(), true, replay ? hooks.replayed : hooks.partDrawn);
}

/** Ask again though nothing changed, after a failure that passes. */
export function again() {
  shown = "";
  changed();
}

function key() {
  return JSON.stringify(request(current()));
}

const subject = ({ view, run }) => JSON.stringify([view, run.model, run.hardware]);

/* What is drawn is of a state before. */
function dim() {
  clearTimeout(dimming);
  if (subject(current()) !== about) hooks.old(true);
  else dimming = setTimeout(() => hooks.old(true), DIM);
}

function undim() {
  clearTimeout(dimming);
  hooks.old(false);
}

function changed() {
  const wanted = key();
  if (wanted === shown) undim();
  else if (shown) dim();
  if (!waiting && wanted === (ledger?.wanted ?? shown)) return;
  performance.mark("change");
  changedAt ||= performance.now();
  clearTimeout(timer);
  replay?.abort();
  replay = null;
  hooks.busy("");
  if (ledger && performance.now() - ledger.since < SLOW) {
    waiting = true;
    return;
  }
  ledger?.controller.abort();
  ask();
}

async function ask() {
  const mine = { controller: new AbortController(), since: performance.now(), wanted: key() };
  const [setup, from] = [current(), changedAt];
  ledger = mine;
  waiting = false;
  changedAt = 0;
  try {
    const look = await asked(setup, false, mine.controller.signal);
    if (ledger !== mine) return;
    shown = mine.wanted;
    about = subject(setup);
    undim();
    hooks.drawn(look);
    if (waiting) dim();
    accepted();
    painted(from, look, setup);
    needsReplay = look.result.needs_bytes === null; // a server's ledger is the whole answer
    if (!waiting) timer = setTimeout(() => askReplay(setup, wide !== hooks.width()), PAUSE);
  } catch (error) {
    if (error.name === "AbortError" || ledger !== mine) return;
    shown = "";
    told(error);
  } finally {
    if (ledger === mine) ledger = null;
  }
  if (waiting && !ledger) ask();
}

/* What the ledger does not know; `anew` where the picture is wanted in another width as well. */
async function askReplay(setup, anew, done = hooks.replayed) {
  const mine = new AbortController();
  replay?.abort();
  replay = mine;
  if (needsReplay) hooks.busy("replaying…");
  try {
    const look = needsReplay || anew ? await asked(setup, needsReplay, mine.signal) : null;
    if (replay === mine) done(look, setup);
  } catch (error) {
    if (error.name === "AbortError" || replay !== mine) return;
    if (!error.problems) throw error;
    hooks.busy(`no replay: ${error.message}`);
    hooks.undecided();
    return;
  }
  if (replay !== mine) return;
  replay = null;
  hooks.busy("");
}

function asked(setup, replays, signal) {
  wide = hooks.width();
  return post("/api/look", request(setup), { query: { width: wide, replay: replays, stretches: hooks.part() }, signal });
}

/* A refused run is the form's to show; the last good result stays. */
function told(error) {
  if (!error.problems) throw error; // not the service's
  refused = true;
  undim();
  hooks.failed(error);
  document.dispatchEvent(new CustomEvent("problems", { detail: { problems: error.problems } }));
}

function accepted() {
  if (!refused) return;
  refused = false;
  document.dispatchEvent(new CustomEvent("problems", { detail: { problems: [] } }));
}

/* From the change to the frame that shows it; what can wait is done after that frame. */
function painted(from, look, setup) {
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const took = performance.now() - from;
      performance.measure("redraw", { start: from, end: from + took });
      document.documentElement.dataset.redrawMs = took.toFixed(1);
      hooks.settled(look, setup);
    };
    channel.port2.postMessage(0);
  });
}
