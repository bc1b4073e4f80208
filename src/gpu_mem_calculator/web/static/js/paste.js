/* The dialog that takes a command, a file, a log or a model's name: opened, or pasted or dropped
   anywhere on the page; and below it the files that a command names, each in a box of its own. */

import { post } from "./api.js";
import { diagnosis } from "./diagnosis.js";
import { MOST as SETUPS, current, get, replaceAll, replaceRun, set } from "./state.js";
import { make, say } from "./words.js";

const MOST = 2 ** 20; // characters; a config.json has a few thousand
const LOG = /\.(log|txt|out|err)$/i;
const STARTS = /\.(sh|bash|sbatch|slurm|sub)$/i; // of several files, the one that names the others
const LAST = 2 ** 19; // characters of a long log
const WHOLE = "The whole is read by: gpu-mem-calc diagnose FILE";
const ROWS = 12;
const FEW_ROWS = 4; // beside the notes, and in the box of a file
const PRINTED = "what a program printed";
const PICKLE = 0x80; // the first byte of torch's memory snapshots
const part = (name) => document.getElementById(`paste-${name}`);
let dialog = null;

/** Make the dialog work; gives the function that opens it. */
export function startPaste() {
  dialog = document.getElementById("paste");
  part("close").addEventListener("click", () => dialog.close());
  part("use").addEventListener("click", use);
  part("file").addEventListener("change", (event) => take([...event.target.files]));
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) use();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  takeDrops();
  document.addEventListener("paste", takePaste);
  return () => {
    open();
    part("text").select();
  };
}

function open() {
  if (dialog.open) return;
  tell([]);
  part("hint").hidden = false;
  part("notes").replaceChildren();
  part("files").replaceChildren();
  part("text").rows = ROWS;
  part("file").value = "";
  dialog.showModal();
  part("text").focus();
}

/* Files are taken anywhere on the page, text in the dialog. */
function takeDrops() {
  const takes = (event) => event.dataTransfer?.types.includes("Files") || dialog.contains(event.target);
  const over = (is) => document.documentElement.classList.toggle("dropping", is);
  document.addEventListener("dragover", (event) => {
    if (!takes(event)) return;
    event.preventDefault();
    over(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || over(false));
  document.addEventListener("drop", (event) => {
    over(false);
    if (!takes(event)) return;
    event.preventDefault();
    open();
    const files = [...event.dataTransfer.files];
    if (files.length) take(files);
    else part("text").value = event.dataTransfer.getData("text/plain");
  });
}

/* What is pasted where nothing else takes it. */
function takePaste(event) {
  if (document.querySelector("dialog[open]") || event.target.closest?.("input, textarea, select, [contenteditable]")) return;
  const files = [...event.clipboardData.files];
  const text = event.clipboardData.getData("text/plain");
  if (!files.length && !text.trim()) return;
  event.preventDefault();
  open();
  if (files.length) take(files);
  else part("text").value = text;
}

/* ---- files: the text itself, or those that it names ---- */

const boxes = () => [...part("files").querySelectorAll("textarea")];
const given = () => Object.fromEntries(boxes().filter((one) => one.value.trim()).map((one) => [one.name, one.value]));
const ends = (path, name) => path === name || path.endsWith(`/${name}`);

/* One file is the text, where no box waits for it; of several, a script is, and the others are
   files that it names. */
async function take(files) {
  if (!files.length) return;
  if (new Uint8Array(await files[0].slice(0, 1).arrayBuffer())[0] === PICKLE) return useSnapshot(files[0]);
  const waits = ({ name }) => boxes().some((box) => ends(box.name, name));
  const hasText = part("text").value.trim() && (boxes().length || files.length > 1);
  const script = files.find(({ name }) => STARTS.test(name) && !waits({ name }));
  const text = script ?? (hasText ? null : files.find((one) => !waits(one)));
  if (text && text !== files[0] && files.length > 1) files = [text, ...files.filter((one) => one !== text)];
  for (const file of files) {
    const read = await readFile(file);
    if (read === null) return;
    if (file === text) part("text").value = read;
    else (boxes().find((one) => ends(one.name, file.name)) ?? box(file.name)).value = read;
  }
  tell([]);
  if (text && text.size > MOST) return tell([`${text.name} is long; its last ${LAST.toLocaleString("en")} characters are here. ${WHOLE}`]);
  if (!part("text").value.trim()) return tell([`Paste the command that names ${files.map((one) => one.name).join(", ")}.`]);
  await use();
}

/* The text of a file, of a long log its end; null where it is too large, which is said. */
async function readFile(file) {
  if (file.size <= MOST) return file.text();
  if (LOG.test(file.name)) return (await file.text()).slice(-LAST);
  tell([`${file.name} has ${file.size.toLocaleString("en")} bytes, too large for a configuration; the most is ${MOST.toLocaleString("en")}`]);
  return null;
}

/* The box of a file that a command names. */
function box(name) {
  const id = `paste-file-${boxes().length}`;
  const made = make("textarea", { id, name, rows: FEW_ROWS, spellcheck: "false" });
  part("files").append(make("label", { for: id }, "The text of ", make("code", {}, name), ": paste it here, or drop the file"), made);
  return made;
}

/* A box for each file that is missing; whether there is a new one. */
function ask(names) {
  const missing = names.filter((name) => !boxes().some((one) => one.name === name));
  const made = missing.map(box);
  if (made.length) part("text").rows = FEW_ROWS;
  if (made.length) part("hint").hidden = true;
  (made[0] ?? boxes().find((one) => !one.value.trim()))?.focus();
  return made.length > 0;
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

async function use() {
  const text = part("text").value;
  if (!text.trim()) {
    tell(["Nothing is pasted yet."]);
    part("text").focus();
    return;
  }
  if (text.length > MOST) return tell([`This is longer than ${MOST.toLocaleString("en")} characters; paste its end. ${WHOLE}`]);
  try {
    const answer = await post("/api/import", { text, files: given() });
    const { run, what, notes = [], others = [], wanted = [] } = answer;
    tell([]);
    if (what === PRINTED) return showDiagnosis(await diagnosis(text));
    if (others.length) showAll([answer, ...others]);
    else if (what === "run file") replaceRun(run);
    else merge(run);
    if (!others.length && notes.length) showNotes(what, notes, wanted);
    else if (!others.length) dialog.close();
    if (wanted.length) ask(wanted);
  } catch (error) {
    const { files = [], problems = [error.message] } = error;
    part("notes").replaceChildren();
    const asked = ask(files);
    tell(asked ? [] : problems);
    if (asked) say(`The command names ${files.join(", ")}. Paste its text, too.`);
    else if (!files.length) part("text").focus();
  }
}

/* What was assumed and is not modelled, in place of the text; the form has the run already, and
   keeps the notes. */
function showNotes(what, notes, wanted) {
  part("text").rows = FEW_ROWS;
  const more = wanted.length ? ` ${wanted.join(", ")} was not read; with its text the answer is closer.` : "";
  part("notes").replaceChildren(
    make("p", {}, `Read as ${what}; the form shows the run now, and Assumptions keep these lines.${more}`),
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
function showAll(commands) {
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

/* A command that leaves something open, such as the card, with what the form has; a note says so. */
function filled(run) {
  const { model, hardware = {} } = current().run;
  const both = { ...hardware, ...run.hardware };
  const kept = [
    ...(run.model ? [] : [`the model is the form's${model?.name ? `, ${model.name}` : ""}`]),
    ...(both.gpu && !run.hardware?.gpu ? [`the card is the form's, ${both.gpu}`] : []),
    ...(both.num_gpus && !run.hardware?.num_gpus ? [`the number of GPUs is the form's, ${both.num_gpus}`] : []),
  ];
  const notes = run.notes && kept.length ? { notes: [...run.notes, `${kept.join("; ")}: what was read says none`] } : {};
  return { model, ...run, hardware: both, ...notes };
}

/* A command or a file that leaves something open: the card, the model, or all but the model. */
function merge(run) {
  const { training } = run;
  if (run.model && !training && !run.inference) return set("model", run.model);
  const asks = !run.model && training && !training.generation; // for a length, as DeepSpeed's JSON
  replaceRun(asks ? { ...filled(run), training: { seq_len: get("training.seq_len"), ...training } } : filled(run));
}

function tell(problems) {
  part("problems").replaceChildren(...problems.map((one) => make("p", {}, one)));
  part("text").toggleAttribute("aria-invalid", problems.length > 0);
}
