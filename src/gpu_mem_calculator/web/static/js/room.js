/* How far the sequence can grow, or must shrink: asked last, since it takes several replays. */

import { post } from "./api.js";
import { current, request } from "./state.js";

let line = null;
let under = null; // the request under way
let shown = ""; // the run that the line is about

/** Where the line is shown. */
export function mountRoom(element) {
  line = element;
}

/** Ask for a run, unless the line is about it already; a server's own map says it all. */
export async function showRoom(look, setup) {
  const run = request(setup);
  if (shown === JSON.stringify(run)) return;
  under?.abort();
  under = new AbortController();
  const mine = under;
  try {
    const { room } = look.result.serving ? { room: "" } : await post("/api/room", run, { signal: mine.signal });
    if (under !== mine) return;
    shown = JSON.stringify(run);
    line.textContent = room && `${room[0].toUpperCase()}${room.slice(1)}.`;
    line.hidden = !room;
  } catch (error) {
    if (!error.problems && error.name !== "AbortError") throw error; // no answer: no line
  }
}

/** The run changed: what is said was of another one. */
export function staleRoom() {
  under?.abort();
  if (shown === JSON.stringify(request(current()))) return;
  shown = "";
  line.hidden = true;
}
