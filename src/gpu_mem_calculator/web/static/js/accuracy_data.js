/* What was measured and predicted: the file's lists made into runs, and how errors are written. */

import { make } from "./words.js";

const GIB = 2 ** 30;
const MIB_A_GIB = 1024;
const ENDS = { fwd: "forward", bwd: "backward", fwdbwd: "forward and backward", opt: "optimizer",
               sync: "gradient sync" };
const STARTS = { model: "the model is built", init: "the engine starts", ddp: "DDP starts",
                 optimizer: "the optimizer is made", load: "weights are loaded",
                 prefill: "the prompt", generate: "prompt and new tokens" };

/** The data with every run as an object, under `list`. */
export function unpacked(data) {
  const unseen = new Set(data.files.filter((file) => file.unseen).map((file) => file.name));
  const kinds = Object.entries(data.kinds);
  const order = [];
  for (const [place, rows] of Object.entries(data.runs)) {
    const [file, group] = place.split("/");
    const [kind, told] = kinds.find(([, one]) => group in one.groups);
    const metrics = Object.keys(told.metrics);
    for (const row of rows) {
      const run = { file, group, kind, unseen: unseen.has(file), figures: {} };
      data.columns.forEach((name, index) => { if (name !== "figures") run[name] = row[index]; });
      row[data.columns.indexOf("figures")].forEach((pair, index) => {
        const name = metrics[index];
        if (pair) run.figures[name] = figure(pair, told.metrics[name].unit);
      });
      run.words = run.words.map((index) => data.phrases[index]).join(", ");
      run.environment = data.phrases[run.environment];
      run.phases = run.phases ? phases(run.phases, data.phases) : [];
      order.push(run);
    }
  }
  return { ...data, list: order };
}

function figure([measured, apart], unit) {
  const error = measured ? (100 * apart) / measured : apart ? null : 0;
  return { measured: measured * unit, predicted: (measured + apart) * unit, error };
}

function phases([names, peaks, off], lists) {
  return lists[names].map((name, index) => {
    const apart = off[index] ?? 0;
    return { name, measured: peaks[index], predicted: peaks[index] + apart, apart,
             error: peaks[index] ? (100 * apart) / peaks[index] : null };
  });
}

/** What a phase is: s0.a1.bwd is step 1, micro-batch 2, backward. */
export function phaseTitle(name) {
  const [, step, , batch, end] = /^s(\d+)\.((?:a|m)(\d+)\.)?(\w+)$/.exec(name) ?? [];
  if (step === undefined) return STARTS[name] ?? name;
  const which = batch === undefined ? "" : `, micro-batch ${Number(batch) + 1}`;
  return `step ${Number(step) + 1}${which}, ${ENDS[end] ?? end}`;
}

/** The size of an error: small ones with more digits. */
export function percent(value) {
  const size = Math.abs(value);
  const digits = size < 0.0095 ? 3 : size < 9.995 ? 2 : 0;
  return `${size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}\u00a0%`;
}

/** An error with its sign. */
export function signed(value) {
  if (value === null || value === undefined) return "–";
  const text = percent(value);
  if (!/[1-9]/.test(text)) return value ? text : "0\u00a0%";
  return `${value < 0 ? "−" : "+"}${text}`;
}

/** A figure of a metric: GiB, tokens or a verdict. */
export function amount(metric, value) {
  if (metric === "fits") return value ? "fits" : "does not fit";
  if (metric === "kv_tokens") return `${Math.round(value).toLocaleString("en")} tokens`;
  return `${gib(value / GIB)} GiB`;
}

/** MiB in GiB. */
export const fromMib = (mib) => gib(mib / MIB_A_GIB);

function gib(value) {
  return value.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
}

/** A run's error of a metric as it is shown; verdicts are right or wrong. */
export function errorWords(metric, one) {
  if (metric !== "fits") return signed(one.error);
  return one.measured === one.predicted ? "right" : "wrong";
}

/** A table from its head and its lines; the first cell of a line is its head. */
export function table(caption, head, lines) {
  const cell = (content, index, tag) => make(tag, { class: index ? "num" : null }, content);
  return make("table", {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, head.map((text, index) =>
      make("th", { scope: "col", class: index ? "num" : null }, text)))),
    make("tbody", {}, lines.map((line) => make("tr", { class: line.kind }, line.cells.map((content, index) =>
      index ? cell(content, index, "td") : make("th", { scope: "row" }, content))))));
}
