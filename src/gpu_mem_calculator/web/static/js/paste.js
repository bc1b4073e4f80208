/* The dialog that takes a command, a file, a log or a model's name: pasted, dropped, or opened. */

import { post } from "./api.js";
import { diagnosis } from "./diagnosis.js";
import { MOST as SETUPS, current, get, replaceAll, replaceRun, set } from "./state.js";
import { make } from "./words.js";

const MOST = 2 ** 20; // characters; a config.json has a few thousand
const LOG = /\.(log|txt|out|err)$/i;
const LAST = 2 ** 19; // characters of a long log
const WHOLE = "The whole is read by: gpu-mem-calc diagnose FILE";
const ROWS = 12;
const FEW_ROWS = 4; // beside the notes
const PRINTED = "what a program printed";
const PICKLE = 0x80; // the first byte of torch's memory snapshots
const part = (name) => document.getElementById(`paste-${name}`);

/** Make the dialog work; gives the function that opens it. */
export function startPaste() {
  const dialog = document.getElementById("paste");
  part("close").addEventListener("click", () => dialog.close());
  part("use").addEventListener("click", () => use(dialog));
  part("file").addEventListener("change", (event) => readFile(event.target.files[0]));
  part("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) use(dialog);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  takeDrops(dialog);
  return () => {
    tell([]);
    part("hint").hidden = false;
    part("notes").replaceChildren();
    part("text").rows = ROWS;
    part("file").value = "";
    dialog.showModal();
    part("text").focus();
    part("text").select();
  };
}

function takeDrops(dialog) {
  dialog.addEventListener("dragover", (event) => {
    event.preventDefault();
    dialog.classList.add("over");
  });
  dialog.addEventListener("dragleave", () => dialog.classList.remove("over"));
  dialog.addEventListener("drop", (event) => {
    event.preventDefault();
    dialog.classList.remove("over");
    const file = event.dataTransfer.files[0];
    if (file) readFile(file);
    else part("text").value = event.dataTransfer.getData("text/plain");
  });
}

async function readFile(file) {
  if (!file) return;
  if (new Uint8Array(await file.slice(0, 1).arrayBuffer())[0] === PICKLE) return useSnapshot(file);
  if (file.size > MOST && LOG.test(file.name)) {
    part("text").value = (await file.text()).slice(-LAST);
    return tell([`${file.name} is long; its last ${LAST.toLocaleString("en")} characters are here. ${WHOLE}`]);
  }
  if (file.size > MOST) {
    tell([`${file.name} has ${file.size.toLocaleString("en")} bytes, too large for a configuration; the most is ${MOST.toLocaleString("en")}`]);
    return;
  }
  part("text").value = await file.text();
  tell([]);
  part("use").focus();
}

/* torch's memory snapshot, which is no text. */
async function useSnapshot(file) {
  tell([]);
  part("text").value = "";
  part("notes").replaceChildren(make("p", {}, `Reading ${file.name}, ${Math.ceil(file.size / 2 ** 20).toLocaleString("en")} MiB …`));
  try {
    showDiagnosis(await diagnosis(file));
  } catch (error) {
    part("notes").replaceChildren();
    tell(error.problems ?? [error.message]);
  }
}

async function use(dialog) {
  const text = part("text").value;
  if (!text.trim()) {
    tell(["Nothing is pasted yet."]);
    part("text").focus();
    return;
  }
  if (text.length > MOST) return tell([`This is longer than ${MOST.toLocaleString("en")} characters; paste its end. ${WHOLE}`]);
  try {
    const answer = await post("/api/import", { text });
    const { run, what, notes = [], others = [] } = answer;
    if (what === PRINTED) return showDiagnosis(await diagnosis(text));
    if (others.length) return showAll(dialog, [answer, ...others]);
    if (what === "run file") replaceRun(run);
    else merge(run);
    if (notes.length) showNotes(what, notes);
    else dialog.close();
  } catch (error) {
    tell(error.problems ?? [error.message]);
    part("text").focus();
  }
}

/* What was assumed and is not modelled, in place of the text; the form has the run already. */
function showNotes(what, notes) {
  part("text").rows = FEW_ROWS;
  part("notes").replaceChildren(
    make("p", {}, `Read as ${what}; the form shows the run now.`),
    make("ul", {}, ...notes.map((one) => make("li", {}, one))),
  );
  part("close").focus();
}

/* Why it died, in place of the text. */
function showDiagnosis(answer) {
  tell([]);
  part("text").rows = FEW_ROWS;
  part("hint").hidden = true;
  part("notes").replaceChildren(answer);
  part("close").focus();
}

/* Several commands: a set-up each, side by side, as many as there can be; the others can be chosen. */
function showAll(dialog, commands) {
  const read = commands.filter((one) => one.run);
  const runs = read.map((one) => filled(one.run));
  replaceAll(runs);
  const few = read.length > 1 ? `the first ${Math.min(read.length, SETUPS)} that can be read stand side by side now` : "the form shows the one that can be read";
  const choice = (index) => make("button", { type: "button", class: "button", onclick: () => (replaceRun(runs[index]), dialog.close()) }, "Show this one");
  const place = (index) => (index < SETUPS ? [`set-up ${index + 1}`] : [`${SETUPS} set-ups are the most`, choice(index)]);
  const item = (one) => {
    const said = one.run ? place(read.indexOf(one)) : one.problems;
    const more = (one.notes ?? []).map((note) => make("li", {}, note));
    return make("li", {}, make("code", {}, one.name), ": ", ...said.flatMap((part, i) => (i ? [" ", part] : [part])), ...(more.length ? [make("ul", {}, ...more)] : []));
  };
  part("text").rows = FEW_ROWS;
  part("notes").replaceChildren(
    make("p", {}, `It has ${commands.length} commands; ${few}.`),
    make("ul", {}, ...commands.map(item)),
  );
  part("close").focus();
}

/* A command that leaves something open, such as the card, with what the form has. */
function filled(run) {
  const { model, hardware } = current().run;
  return { model, ...run, hardware: { ...hardware, ...run.hardware } };
}

/* A command or a file that leaves something open: the card, the model, or all but the model. */
function merge(run) {
  if (run.model && (run.training || run.inference)) return replaceRun(filled(run));
  if (run.model) return set("model", run.model);
  const training = { seq_len: get("training.seq_len"), ...run.training };
  return replaceRun({ ...filled({ hardware: run.hardware }), training, engine: run.engine });
}

function tell(problems) {
  part("problems").replaceChildren(...problems.map((one) => make("p", {}, one)));
  part("text").toggleAttribute("aria-invalid", problems.length > 0);
}
