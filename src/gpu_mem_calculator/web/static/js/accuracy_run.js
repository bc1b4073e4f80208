/* One run, opened: where it was measured, every figure, every phase, and what others said. */

import { amount, errorWords, fromMib, phaseTitle, signed, table } from "./accuracy_data.js";
import { draw, make } from "./words.js";

const GIB = 2 ** 30, TALL = 120, GAP = 0.28;
const TRACED = ["allocated", "reserved", "needs"]; // the order of a run's `trace`

/** What a row opens to. */
export function details(data, run) {
  const file = data.files.find((one) => one.name === run.file);
  return make("div", { class: "opened" },
    make("p", { class: "soft" }, run.environment, ". ", make("code", {}, `tests/ground_truth/${run.file}.jsonl`),
      `: ${file.title}. `, make("a", { href: `#run=${run.id}` }, "Link to this run")),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figures of ${run.id}` }, figures(data, run)),
    ...reasons(data, run),
    ...(run.phases.length ? phasesOf(run) : []),
    ...others(data, run),
    make("p", { class: "soft" }, "The same on the command line: ",
      make("code", {}, `gpu-mem-calc backtest tests/ground_truth/${run.file}.jsonl --phases`)));
}

function figures(data, run) {
  const metrics = data.kinds[run.kind].metrics;
  const traced = run.trace?.length ? run.trace : null;
  const head = ["figure", "measured", "predicted", "error", ...(traced ? ["error of the trace"] : [])];
  return table("Every figure of this run", head, Object.entries(run.figures).map(([key, one]) => ({ kind: null, cells: [
    metrics[key].title, amount(key, one.measured), amount(key, one.predicted), errorWords(key, one),
    ...(traced ? [TRACED.includes(key) ? signed(traced[TRACED.indexOf(key)]) : "–"] : [])] })));
}

function reasons(data, run) {
  const found = new Map();
  for (const [what, index] of Object.entries(run.reasons ?? {})) {
    const why = data.phrases[index];
    const named = what.startsWith("phase ") ? phaseTitle(what.slice(6)) : data.kinds[run.kind].metrics[what].title;
    found.set(why, [...(found.get(why) ?? []), named]);
  }
  return [...found].map(([why, what]) => make("p", { class: "why" }, make("strong", {}, `Why ${what.join("; ")} is off: `), why.replaceAll("`", "")));
}

/* Phases: bars for what was measured, a line across each for what was predicted. */

function phasesOf(run) {
  const off = run.phases.filter((one) => one.apart).length;
  const says = off ? `${off} of ${run.phases.length} phases are off by a MiB or more.` : `All ${run.phases.length} phases are right to the MiB.`;
  const lines = run.phases.map((one) => ({ kind: null, cells: [phaseTitle(one.name), fromMib(one.measured), fromMib(one.predicted),
    one.apart ? `${one.apart > 0 ? "+" : "−"}${Math.abs(one.apart).toLocaleString("en")}` : "0", signed(one.error)] }));
  return [
    make("figure", { class: "phases" }, bars(run),
      make("figcaption", {}, make("span", { class: "bar-sample" }), "measured peak of each phase ", make("span", { class: "line-sample" }), "predicted. ", says)),
    make("details", {}, make("summary", {}, "Phase by phase"),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Phases of ${run.id}` },
        table("Peak of each phase", ["phase", "measured, GiB", "predicted, GiB", "off by, MiB", "error"], lines))),
  ];
}

function bars(run) {
  const most = Math.max(...run.phases.flatMap((one) => [one.measured, one.predicted]), 1);
  const y = (mib) => TALL - (TALL * mib) / most;
  const parts = run.phases.flatMap((one, index) => {
    const says = `${phaseTitle(one.name)}: measured ${fromMib(one.measured)} GiB, predicted ${fromMib(one.predicted)} GiB`;
    return [
      draw("rect", { class: "measured", x: index + GAP / 2, width: 1 - GAP, y: y(one.measured), height: TALL - y(one.measured) }, draw("title", {}, says)),
      draw("path", { class: "predicted", d: `M${index + 0.04} ${y(one.predicted)}h0.92` }),
    ];
  });
  return draw("svg", { class: "phase-bars", viewBox: `0 -4 ${run.phases.length} ${TALL + 6}`, preserveAspectRatio: "none", role: "img",
                       "aria-label": `Peaks of ${run.phases.length} phases, the highest ${fromMib(most)} GiB; the table below has each` }, parts);
}

function others(data, run) {
  if (run.file !== data.peers.file) return [];
  const index = data.list.filter((one) => one.file === run.file).indexOf(run);
  const measured = run.figures[data.peers.metric].measured / GIB;
  const lines = data.peers.tools.filter((tool) => tool.answers.length && tool.answers[index] !== null).map((tool) => {
    const said = tool.answers[index];
    return { kind: null, cells: [tool.name, `${said.toFixed(2)} GiB`, signed(100 * (said / measured - 1))] };
  });
  if (!lines.length) return [];
  return [make("details", {}, make("summary", {}, `What ${lines.length} other calculators say of it`),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Other calculators on ${run.id}` },
      table("Other calculators on this run", ["calculator", "predicted", "error"], lines)))];
}
