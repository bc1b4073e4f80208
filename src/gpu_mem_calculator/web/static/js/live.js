/* Asking the service again whenever the state changes: the ledger at once, then the replay.

   One ledger request is under way at a time. A change meanwhile waits until it is drawn and then
   asks for the newest state only, so a dragged slider is drawn as fast as answers come and leaves
   no queue behind; a request that is slow is given up instead. */

import { post } from "./api.js";
import { current, request, subscribe } from "./state.js";

const PAUSE = 150; // milliseconds of rest before the replay is asked for
const SLOW = 250; // milliseconds after which a newer state does not wait for an older answer

let hooks = null;
let ledger = null; // the request under way: {controller, since}
let replay = null; // the replay's controller
let timer = 0;
let changedAt = 0; // when the state last changed that is not yet drawn
let waiting = false; // a newer state waits for the request under way
let shown = ""; // the request and width that are drawn
let refused = false; // the last state was, and the form shows why

/** Begin. `given` has width(), drawn(look, setup), settled(look) once that is on the screen,
    replayed(look, setup), busy(text), failed(error). */
export function start(given) {
  hooks = given;
  subscribe(changed);
  changed();
}

/** The picture's room changed: ask for another width, where it is another. */
export function resized() {
  if (shown && shown !== key()) changed();
}

/** Ask again though nothing changed, after a failure that passes. */
export function again() {
  shown = "";
  changed();
}

function key() {
  return JSON.stringify([request(current()), hooks.width()]);
}

function changed() {
  if (shown === key() && !ledger) return;
  performance.mark("change");
  changedAt ||= performance.now();
  clearTimeout(timer);
  replay?.abort();
  replay = null;
  if (ledger && performance.now() - ledger.since < SLOW) {
    waiting = true;
    return;
  }
  ledger?.controller.abort();
  ask();
}

async function ask() {
  const mine = { controller: new AbortController(), since: performance.now() };
  const [setup, wanted, from] = [current(), key(), changedAt];
  ledger = mine;
  waiting = false;
  changedAt = 0;
  try {
    const look = await asked(setup, false, mine.controller.signal);
    if (ledger !== mine) return;
    shown = wanted;
    hooks.drawn(look, setup);
    accepted();
    painted(from, look);
    if (!waiting) timer = setTimeout(() => askReplay(setup, look), PAUSE);
  } catch (error) {
    if (error.name === "AbortError" || ledger !== mine) return;
    shown = "";
    told(error);
  }
  ledger = null;
  if (waiting) ask();
}

/* A server with a pool has no replay: its ledger is the whole answer. */
async function askReplay(setup, ledgers) {
  const mine = new AbortController();
  const replays = ledgers.result.needs_bytes === null;
  replay = mine;
  if (replays) hooks.busy("replaying…");
  try {
    const look = replays ? await asked(setup, true, mine.signal) : ledgers;
    if (replay === mine) hooks.replayed(look, setup);
  } catch (error) {
    if (error.name !== "AbortError" && replay === mine) told(error);
  }
  if (replay === mine) hooks.busy("");
}

function asked(setup, replays, signal) {
  const query = { width: hooks.width(), replay: replays };
  return post("/api/look", request(setup), { query, signal });
}

/* A refused run is the form's to show; the last good result stays. */
function told(error) {
  const problems = error.problems ?? [error.message];
  refused = true;
  hooks.failed(error);
  document.dispatchEvent(new CustomEvent("problems", { detail: { problems } }));
}

function accepted() {
  if (!refused) return;
  refused = false;
  document.dispatchEvent(new CustomEvent("problems", { detail: { problems: [] } }));
}

/* From the change to the frame that shows it; what can wait is done after that frame. */
function painted(from, look) {
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const took = performance.now() - from;
      performance.measure("redraw", { start: from, end: from + took });
      document.documentElement.dataset.redrawMs = took.toFixed(1);
      hooks.settled(look);
    };
    channel.port2.postMessage(0);
  });
}
