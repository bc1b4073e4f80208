/* Why a run died: the answer to a pasted log, in the dialog where it was pasted. */

import { post } from "./api.js";
import { current, request } from "./state.js";
import { make } from "./words.js";

const MOST_READ = 8; // lines that were read are shown

/** The diagnosis of a text, and a button for the form's run where the text states none. */
export async function diagnosis(text) {
  const place = make("div", { class: "diagnosis" });
  const show = async (run) => place.replaceChildren(...shown(await post("/api/diagnose", { text, ...(run ? { run } : {}) }), show));
  await show(null);
  return place;
}

function shown(found, again) {
  const { cause, others, evidence, read, remedies, notes, question, run, summary } = found;
  const formsRun = make("button", { type: "button", class: "button", onclick: () => again(request(current())) }, "Compare with the form’s run");
  return [
    make("p", { class: "cause" }, make("strong", {}, cause ? `${cause.certainty}: ` : "cannot tell: "), cause ? cause.sentence : "nothing in the text says why it died"),
    ...(cause && (cause.phase || cause.tensor) ? [make("p", {}, [cause.phase && `it died in: ${cause.phase}`, cause.tensor && `for: ${cause.tensor}`].filter(Boolean).join("; "))] : []),
    ...others.map((one) => make("p", { class: "soft" }, `or, ${one.certainty}: ${one.sentence}`)),
    ...listed("What helps, the cheapest first", "ol", remedies.map(remedy)),
    ...listed("Evidence", "ul", evidence),
    ...listed(`Read: ${read.length} ${read.length === 1 ? "line" : "lines"}`, "ul", read.slice(0, MOST_READ).map((one) => `line ${one.line.toLocaleString("en")}: ${one.what.replaceAll("_", " ")}`)),
    ...listed("Notes", "ul", notes),
    ...(question ? [make("p", {}, question)] : []),
    ...(run ? [] : [formsRun]),
    make("p", {}, "To paste into an issue: ", make("code", {}, summary)),
  ];
}

function remedy(one) {
  const fits = one.fits ? " It then fits, by an estimate." : "";
  return make("span", {}, one.sentence, fits, ...(one.command ? [make("pre", {}, one.command)] : []));
}

function listed(title, kind, items) {
  return items.length ? [make("h3", {}, title), make(kind, {}, ...items.map((one) => make("li", {}, one)))] : [];
}
