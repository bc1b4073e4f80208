/* The page /accuracy: a sentence, a picture, tables, and every run. */

import { percent, signed, table, unpacked } from "./accuracy_data.js";
import { plot, sample, told } from "./accuracy_picture.js";
import { showRuns } from "./accuracy_runs.js";
import { make } from "./words.js";

const OURS = "this one";
const BENCH = 0.9; // of the runs: who answers fewer is not the best of the others
const capital = (text) => (/^[a-z]{2}/.test(text) ? text[0].toUpperCase() + text.slice(1) : text);
const byId = (id) => document.getElementById(id);

async function start() {
  const lead = byId("lead");
  try {
    const answer = await fetch("/static/accuracy.json");
    if (!answer.ok) throw new Error(`the server said ${answer.status}`);
    const data = unpacked(await answer.json());
    showLead(lead, data);
    showUnseen(data);
    showBeside(data);
    showGroups(data);
    showHow(data);
    showRuns(data);
  } catch (error) {
    lead.textContent = `The measured runs could not be shown: ${error.message}. Reload the page.`;
    lead.setAttribute("role", "alert");
  }
}

function peersOf(data) {
  const tools = data.peers.tools;
  return { ours: tools.find((tool) => tool.name === OURS), others: tools.filter((tool) => tool.name !== OURS) };
}

function showLead(lead, data) {
  const { training, serving } = data.kinds;
  const { ours, others } = peersOf(data);
  const best = others.find((tool) => tool.overall.n >= BENCH * ours.overall.n);
  const of = (kind, metric) => percent(kind.metrics[metric].overall.mean);
  lead.replaceChildren(
    make("strong", {}, `Peak memory is off by ${of(training, "allocated")} in the mean of ${training.metrics.allocated.overall.n} measured runs, `,
      `${percent(training.metrics.allocated.overall.worst)} at worst.`),
    ` On the ${ours.overall.n} runs that other calculators were asked about, the best of those that answer most is off by `,
    `${percent(best.overall.mean)} (${best.name}). The least memory that a run survives in is off by ${of(training, "needs")}, `,
    `nvidia-smi’s figure by ${of(training, "device")}; on ${serving.runs} public server logs, weights are off by `,
    `${of(serving, "weights")} and the KV cache by ${of(serving, "kv_pool")}.`);
}

/* The picture and its table */

function showBeside(data) {
  const { ours, others } = peersOf(data);
  const all = data.kinds.training.metrics.allocated;
  const groups = [["", "all groups"], ...Object.entries(data.kinds.training.groups).map(([key, one]) => [key, one.title])];
  const pick = (one, key) => (key ? one.groups[key] : one.overall);
  const rows = groups.map(([key, title]) => {
    const mine = pick(ours, key), every = pick(all, key);
    const marks = others.flatMap((tool, index) => {
      const figures = pick(tool, key);
      return figures ? [{ value: figures.mean, sign: String(index + 1), says: told(tool.name, figures) }] : [];
    });
    if (mine) marks.push({ value: mine.mean, sign: "ours", says: told("this calculator, the same runs", mine) });
    marks.push({ value: every.mean, sign: "all", says: told("this calculator, all measured runs", every) });
    const worst = { from: every.mean, value: Math.abs(every.worst),
                    says: `the worst of ${every.n} runs here: ${signed(every.worst)}` };
    return { title, marks, worst };
  });
  plot(byId("beside"), {
    title: "Error of the peak by group, this calculator and the others",
    says: `A logarithmic axis. ${range(rows, "This calculator", (sign) => sign === "ours" || sign === "all")}; `
      + `${range(rows, "the others", (sign) => sign !== "ours" && sign !== "all")}. The table below has every figure.`,
    axis: "mean error of the allocated peak, % (left is better)", most: 1000, rows });
  byId("beside-marks").replaceChildren(...[
    ["ours", `this calculator, on the same ${ours.overall.n} runs`],
    ["all", `this calculator, on all ${all.overall.n} measured runs`],
    ["worst", "the worst of those"],
  ].map(([sign, text]) => make("li", {}, sample(sign), text)));
  byId("beside-key").replaceChildren(...others.map((tool, index) => make("li", {}, sample(String(index + 1)),
    make("span", {}, tool.name), " ", make("span", { class: "soft" }, `${percent(tool.overall.mean)}, ${tool.overall.n} runs`))));
  byId("beside-says").textContent = `Each calculator was given its nearest options on the ${ours.overall.n} runs of ${data.peers.file}.jsonl; `
    + "who has no circle in a row does not answer such runs. Those runs were looked at while our formulas were written; hollow diamonds are of all runs.";
  byId("others").replaceChildren(table("Mean error of the allocated peak, and of how many runs",
    ["calculator", ...groups.map(([, title]) => title)],
    [ours, ...others].map((tool) => ({ kind: tool === ours ? "ours" : null, cells: [
      tool === ours ? "this calculator" : tool.name,
      ...groups.map(([key]) => cell(pick(tool, key), "mean"))] }))));
}

function range(rows, who, counts) {
  const found = rows.flatMap((row) => row.marks.filter((mark) => counts(mark.sign)).map((mark) => mark.value));
  return `${who}: from ${percent(Math.min(...found))} to ${percent(Math.max(...found))}`;
}

function cell(figures, which) {
  if (!figures?.n) return make("span", { class: "soft" }, "–");
  if ("right" in figures) return `${figures.right} of ${figures.n} right`;
  const text = which === "worst" ? signed(figures.worst) : percent(figures[which]);
  return make("span", {}, text, " ", make("span", { class: "of" }, `(${figures.n})`));
}

function showUnseen(data) {
  const files = data.files.filter((file) => file.unseen);
  const number = (metric) => files.filter((file) => file.metric === metric).reduce((sum, file) => sum + file.runs, 0);
  byId("unseen-says").textContent = `${number("allocated")} runs and ${number("kv_pool")} server logs were scored before anything was changed because of them. `
    + "What was found then is what counts for a run of your own; every other figure on this page is one of hindsight.";
  byId("unseen").replaceChildren(...files.map((file) => make("li", {},
    make("strong", {}, `${capital(file.title)}: ${file.runs} ${file.metric === "allocated" ? "runs" : "logs"}. `),
    file.use,
    ` Now: ${percent(file.mean)} in the mean, ${signed(file.worst)} at worst (${file.metric === "allocated" ? "allocated" : "KV pool"}).`)));
}

/* Every figure by group */

const HEADINGS = { training: ["training and inference, measured by us", "runs"], serving: ["servers, from public start-up logs", "logs"] };

function showGroups(data) {
  const which = byId("which");
  const show = () => Object.entries(data.kinds).forEach(([kind, told]) => {
    const metrics = Object.values(told.metrics);
    const lines = Object.entries(told.groups).map(([key, group]) => ({ kind: null, cells: [
      make("a", { href: `#group=${key}` }, group.title), String(group.runs),
      ...metrics.map((metric) => cell(metric.groups[key], which.value))] }));
    lines.push({ kind: "sum", cells: ["all", String(told.runs), ...metrics.map((metric) => cell(metric.overall, which.value))] });
    const [title, runs] = HEADINGS[kind];
    const word = which.selectedOptions[0].textContent.replace("the ", "");
    byId(kind).replaceChildren(table(`${title}: ${word}, and of how many`, ["group", runs, ...metrics.map((metric) => metric.title)], lines));
  });
  which.addEventListener("change", show);
  show();
  byId("still").replaceChildren(make("details", {}, make("summary", {}, "What is still off, and why"),
    make("dl", { class: "words" }, Object.values(data.kinds.training.groups).flatMap((group) =>
      [make("dt", {}, group.title), make("dd", {}, group.says)]))));
}

function showHow(data) {
  const libraries = Object.entries(data.libraries).map(([name, versions]) => `${name} ${versions.join(" and ")}`);
  byId("made").textContent = `Measured on one ${data.card}: ${libraries.join(", ")}. Where a run has several ranks, one was measured and the others were faked. `
    + `Servers are from public logs on many cards. Scored on ${data.date} by version ${data.version}. `
    + "An error is (predicted − measured) / measured; means are of its size, and the worst has its sign: below 0, too little was predicted. "
    + (data.refused.length ? `Not expressed: ${data.refused.map(([id, why]) => `${id} (${why})`).join("; ")}.` : "");
  byId("words").replaceChildren(...Object.values(data.kinds).flatMap((kind) => Object.values(kind.metrics).flatMap((metric) =>
    [make("dt", {}, metric.title), make("dd", {}, metric.says)])));
  byId("files").replaceChildren(table("Files of measured runs, and how close each is now: allocated, or the KV pool of servers",
    ["file", "runs", "mean", "worst", "what it is"],
    data.files.toSorted((a, b) => b.unseen - a.unseen).map((file) => ({ kind: null, cells: [make("code", {}, `${file.name}.jsonl`), String(file.runs), percent(file.mean), signed(file.worst),
      make("span", { class: "use" }, `${capital(file.title)}. ${file.use}`)] }))));
}

start();
