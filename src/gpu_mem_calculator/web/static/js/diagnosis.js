/* Why a run died: the answer to a pasted log, in the dialog where it was pasted. */

import { post, postFile } from "./api.js";
import { current, get, request, untouched } from "./state.js";
import { gib, make } from "./words.js";

const MOST_READ = 8; // lines that were read are shown
const MOST_PARTS = 12; // rows of printed and estimated figures

/** The diagnosis of a text or of torch's memory snapshot, and a button for the form's run where none is stated, else for its card. */
export async function diagnosis(given) {
  const place = make("div", { class: "diagnosis" });
  const answer = ({ run, gpu }) => (typeof given === "string" ? post("/api/diagnose", { text: given, ...(run ? { run } : {}) }, { query: { gpu } }) : postFile("/api/diagnose", given, { query: { run: run && JSON.stringify(run), gpu } }));
  const show = async (known) => place.replaceChildren(...shown(await answer(known), known, show));
  await show({});
  return place;
}

function shown(found, known, again) {
  const { cause, others, evidence, parts, read, remedies, notes, error, question, run, summary } = found;
  const card = get("hardware.gpu");
  const button = (words, more) => make("button", { type: "button", class: "button", onclick: () => again(more) }, words);
  const formsRun = run || untouched() ? [] : [button("Compare with the form’s run", { run: request(current()) })];
  const formsCard = run && card && !known.run && known.gpu !== card ? [button(`Count it on the form’s card, ${card}`, { gpu: card })] : [];
  return [
    make("p", { class: "cause" }, make("strong", {}, cause ? `${cause.certainty}: ` : error ? "no memory error: " : "cannot tell: "), cause ? cause.sentence : error || "nothing in the text says why it died"),
    ...(cause && (cause.phase || cause.tensor) ? [make("p", {}, [cause.phase && `it died in: ${cause.phase}`, cause.tensor && `for: ${cause.tensor}`].filter(Boolean).join("; "))] : []),
    ...others.map((one) => make("p", { class: "soft" }, `or, ${one.certainty}: ${one.sentence}`)),
    ...listed("What helps, the cheapest first", "ol", remedies.map(remedy)),
    ...listed("Evidence", "ul", evidence),
    ...partTable(parts),
    ...listed(`Read: ${read.length} ${read.length === 1 ? "line" : "lines"}`, "ul", read.slice(0, MOST_READ).map((one) => `line ${one.line.toLocaleString("en")}: ${one.kind}`)),
    ...listed("Notes", "ul", notes),
    ...(question ? [make("p", {}, question)] : []),
    ...formsRun,
    ...formsCard,
    make("p", {}, "To paste into an issue: ", make("code", {}, summary)),
  ];
}

function remedy(one) {
  const fits = one.fits ? `${one.sentence.endsWith(".") ? "" : "."} It then fits, by an estimate.` : "";
  return make("span", {}, one.sentence, fits, ...(one.command ? [make("pre", {}, one.command)] : []));
}

/* What was printed beside the estimate, where there is one. */
function partTable(parts) {
  if (parts.every((one) => one.estimated === null)) return [];
  const cell = (value, unit) => make("td", { class: "number" }, value === null ? "–" : unit === "bytes" ? `${gib(value)} GiB` : value.toLocaleString("en"));
  const row = (one) => make("tr", {}, make("th", { scope: "row" }, [one.name, one.where].filter(Boolean).join(one.where.startsWith("in ") ? " " : ", ")), cell(one.printed, one.unit), cell(one.estimated, one.unit), make("td", {}, one.beyond ? "differs" : ""));
  const head = ["part by part", "printed", "estimated", ""].map((words) => make("th", { scope: "col" }, words));
  const order = [...parts].sort((a, b) => b.beyond - a.beyond).slice(0, MOST_PARTS);
  return [make("table", { class: "parts" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...parts.filter((one) => order.includes(one)).map(row)))];
}

function listed(title, kind, items) {
  return items.length ? [make("h3", {}, title), make(kind, {}, ...items.map((one) => make("li", {}, one)))] : [];
}
