/* Where a number comes from: an entry's formula in words, with letters and with numbers, when it is alive,
   what it is made of, who says so. */

import { post } from "./api.js";
import { current, request } from "./state.js";
import { count, draw, gib, make, swatch } from "./words.js";

const KINDS = { "outside torch": "runtime" }; // a kind's pattern, where its name is another
const PLACES = { gpu: "on the GPU", cpu: "in host RAM", nvme: "on disk", unified: "in unified memory" };
const TEXTBOOK_LETTERS = { P: "parameters", L: "layers of a pipeline stage" };
const OPEN = 3; // so many entries are shown open

let dialog = null;
let asked = { key: "", answer: null }; // the last explanation, for as long as its run is the same
let instants = []; // the ledger's, to draw when an entry is alive

/** The instants of the run that is shown. */
export function explains(look) {
  instants = look.instants;
}

/** Open the explanation of one entry by `name`, or of those of a `kind` (or all) at an `instant`. */
export async function openExplanation({ title, name, kind, instant }) {
  const body = start(title);
  try {
    const found = await explanation();
    const wanted = (one) => (name === undefined ? of(one) === (kind ?? of(one)) && lives(one, instant) : one.name === name);
    const entries = found.entries.filter(wanted);
    const none = () => [make("p", {}, "No formula: it comes from the replay of PyTorch’s allocator.")];
    const lead = name === undefined ? textbook(found, kind) : [];
    body.replaceChildren(...lead, ...(entries.length ? shown(entries, found) : none()));
  } catch (error) {
    body.replaceChildren(...(error.problems ?? [error.message]).map((one) => make("p", { class: "warning" }, one)));
  }
}

/* An entry's kind, as the picture has it. */
const of = (one) => KINDS[one.kind] ?? one.kind;

function lives(one, instant) {
  return one.place === "gpu" && (instant === undefined || instant in one.alive || one.kind in KINDS);
}

function explanation() {
  const run = request(current());
  const key = JSON.stringify(run);
  if (asked.key !== key) {
    asked = { key, answer: post("/api/explain", run) };
    asked.answer.catch(() => (asked = { key: "", answer: null }));
  }
  return asked.answer;
}

function start(title) {
  if (dialog === null) {
    dialog = make("dialog", { class: "dialog explain", "aria-labelledby": "explain-title" });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
  }
  const close = make("button", { type: "button", class: "button quiet", onclick: () => dialog.close() }, "Close");
  const body = make("div", { class: "explain-body", tabindex: "0" }, make("p", { class: "soft" }, "Looking it up…"));
  dialog.replaceChildren(make("header", {}, make("h2", { id: "explain-title" }, title), close), body);
  if (!dialog.open) dialog.showModal();
  return body;
}

/* What textbooks say of a kind, or of everything: letters, numbers put in, and what this run takes. */
function textbook(found, kind) {
  const known = found.textbook.filter((one) => kind === undefined || one.kinds.includes(kind));
  return known.map((one) => {
    const run = found.entries.filter((each) => each.place === "gpu" && one.kinds.includes(of(each)));
    const bytes = run.reduce((sum, each) => sum + each.bytes_at_peak, 0);
    return make(
      "section",
      { class: "textbook" },
      make("h3", {}, `The textbook: ${one.title}`),
      make("p", {}, make("code", {}, one.formula)),
      make("p", {}, make("code", {}, `= ${one.numbers}`)),
      make("p", { class: "soft" }, `This run: ${gib(bytes)} GiB at the peak, entry by entry below. Source: ${one.source}.`),
    );
  });
}

function shown(entries, found) {
  const made = entries.map((one, i) => entry(one, found, i < OPEN || entries.length <= OPEN));
  const used = letters(entries, found);
  return used.length ? [...made, make("h3", {}, "Letters"), make("dl", { class: "letters" }, used)] : made;
}

function entry(one, found, open) {
  const most = one.bytes_at_peak || one.bytes;
  const size = one.bytes_at_peak ? `${gib(most)} GiB at the peak` : `${gib(most)} GiB, not at the peak`;
  const rows = [
    ...(one.short ? [["Formula", make("code", {}, one.short)]] : []),
    ...(one.words ? [["In numbers", make("code", {}, one.words)]] : exact(one)),
    ["Where", PLACES[one.place] ?? one.place],
    ["Copies", copies(one, found)],
    ["Alive", alive(one)],
    ["Source", one.source],
  ];
  const list = make("dl", { class: "facts" }, rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  const head = make("summary", {}, swatch(of(one)), make("span", { class: "name" }, one.name), make("span", { class: "num" }, size));
  return make("details", { class: "entry", open }, head, list, behind(one), parts(one));
}

/* The formula of the code, tensor by tensor. */
function exact(one) {
  const formula = bare(one) ? [] : [["Formula", make("code", {}, one.formula)]];
  return [...formula, ["In numbers", make("code", {}, numbers(one))]];
}

/* It again behind a shorter one. */
function behind(one) {
  if (!one.words) return "";
  const rows = exact(one).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  return make("details", { class: "exact" }, make("summary", {}, "Exactly, tensor by tensor"), make("dl", { class: "facts" }, rows));
}

/* How many are alive at the peak, and what they come to. */
function copies(one, found) {
  if (!one.copies_at_peak) return "none at the peak";
  const total = one.copies_at_peak === 1 ? "" : ` × ${gib(one.bytes)} GiB = ${gib(one.bytes_at_peak)} GiB`;
  return `${count(one.copies_at_peak)}${total} at ${found.peak}`;
}

const same = (text, bytes) => text.replace(/,/g, "") === String(bytes);

/* Whether there is no more to a formula than its result. */
const bare = (one) => same(one.formula, one.bytes);

function numbers(one) {
  const whole = `${count(one.bytes)} bytes`;
  return same(one.numbers, one.bytes) ? whole : `${one.numbers} = ${whole}`;
}

/* When it is alive: in words, and as a strip with a mark for each instant of the step. */
function alive(one) {
  if (!Object.keys(one.alive).length || one.always) return ["from start to end of the step"];
  const most = Math.max(...Object.values(one.alive));
  const marks = instants.map((title, i) => {
    const tall = (16 * (one.alive[title] ?? 0)) / most;
    return draw("rect", { class: tall ? "on" : "off", x: i * 10 + 1, width: 8, y: tall ? 16 - tall : 15, height: tall || 1 });
  });
  const wide = 10 * instants.length;
  const strip = draw("svg", { class: "strip", viewBox: `0 0 ${wide} 16`, width: wide, height: 16, "aria-hidden": "true" }, marks);
  const said = Object.entries(one.alive).map(([title, copies]) => (copies > 1 ? `${title} (${count(copies)} copies)` : title));
  const few = said.length <= 4 ? said.join("; ") : `${said.length} of ${instants.length} instants, ${said[0]} to ${said.at(-1)}`;
  return [strip, make("span", {}, few)];
}

function parts(one) {
  if (!one.parts.length) return "";
  const rows = one.parts.map(([name, bytes, formula]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, name),
      make("td", {}, make("code", {}, formula)),
      make("td", { class: "num" }, gib(bytes)),
    ),
  );
  const names = [["part", ""], ["formula, bytes", ""], ["GiB", "num"]];
  const heads = names.map(([text, kind]) => make("th", { scope: "col", class: kind }, text));
  const table = make("table", { class: "entries" }, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, rows));
  return make("details", {}, make("summary", {}, `${count(rows.length)} parts of one copy`), make("div", { class: "scroll", tabindex: "0" }, table));
}

function letters(entries, found) {
  const text = entries.map((one) => [one.short, one.formula, ...one.parts.map((part) => part[2])].join(" ")).join(" ");
  const words = new Set([text, ...found.textbook.map((one) => one.formula)].join(" ").match(/[A-Za-z]\w*/g) ?? []);
  const meant = Object.entries(TEXTBOOK_LETTERS).filter(([name]) => words.has(name) && !(name in found.letters));
  const known = Object.entries(found.letters)
    .filter(([name]) => words.has(name))
    .flatMap(([name, value]) => {
      const meaning = found.meanings?.[name];
      return [make("dt", {}, make("code", {}, name)), make("dd", {}, meaning ? `${meaning}: ${count(value)}` : count(value))];
    });
  return [...meant.flatMap(([name, meaning]) => [make("dt", {}, make("code", {}, name)), make("dd", {}, meaning)]), ...known];
}
