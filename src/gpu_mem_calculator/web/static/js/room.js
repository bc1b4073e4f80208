/* How far the sequence can grow, or must shrink: asked last, since it takes several replays. */

import { once } from "./once.js";

let line = null;
const question = once("/api/room", ({ room }) => write(room), () => write(""));

/** Where the line is shown. */
export function mountRoom(element) {
  line = element;
}

/** Ask for a run; a server's own map says it all. */
export function showRoom(look, setup) {
  if (!look.result.serving) question.ask(setup);
}

/** The run changed: the line is only shown with the run that it is about. */
export function staleRoom() {
  line.hidden = !question.fresh() || !line.textContent;
}

function write(room) {
  line.textContent = room && `${room[0].toUpperCase()}${room.slice(1)}.`;
  line.hidden = !room;
}
