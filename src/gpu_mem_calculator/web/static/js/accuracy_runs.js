/* Every run: a table to filter, to sort and to open. */

import { amount, errorWords } from "./accuracy_data.js";
import { details } from "./accuracy_run.js";
import { make } from "./words.js";

const FIRST = 25; // rows before "Show all"
const HEADS = [["id", "run"], ["group", "group"], ["measured", "measured"], ["predicted", "predicted"], ["error", "error"]];
const SAID = { 1: "ascending", "-1": "descending" };
const byId = (id) => document.getElementById(id);

/** Fills the section and listens to its filters. */
export function showRuns(data) {
  const state = { key: "error", direction: -1, all: false, open: null };
  const metric = byId("metric"), group = byId("group"), find = byId("find"), unseen = byId("only-unseen");
  metric.replaceChildren(...Object.entries(data.kinds).map(([kind, told]) =>
    make("optgroup", { label: kind === "training" ? "training and inference" : "servers" },
      Object.entries(told.metrics).map(([key, one]) => make("option", { value: key }, one.title)))));
  let kind = null;
  const show = () => {
    kind = fillGroups(data, metric.value, group, kind);
    draw(data, state, found(data, { kind, metric: metric.value, group: group.value, words: find.value, unseen: unseen.checked }), metric.value, show);
  };
  for (const [one, event] of [[metric, "change"], [group, "change"], [find, "input"], [unseen, "change"]]) {
    one.addEventListener(event, () => { state.all = false; state.open = null; show(); });
  }
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { state.all = true; show(); byId("runs").querySelector("button")?.focus(); });
  const follow = () => followed(data, state, { metric, group, find, unseen }, () => { kind = null; show(); });
  window.addEventListener("hashchange", follow);
  show();
  follow();
}

/** The groups that a figure's kind of runs has; the choice stays where it still means something. */
function fillGroups(data, metric, select, before) {
  const [kind, told] = Object.entries(data.kinds).find(([, one]) => metric in one.metrics);
  if (kind !== before) {
    const wanted = select.dataset.wanted ?? select.value;
    delete select.dataset.wanted;
    select.replaceChildren(make("option", { value: "" }, "all"),
      ...Object.entries(told.groups).map(([key, one]) => make("option", { value: key }, one.title)));
    select.value = wanted in told.groups ? wanted : "";
  }
  return kind;
}

/** `#group=ddp` shows a group, `#run=id` opens a run. */
function followed(data, state, { metric, group, find, unseen }, show) {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const run = data.list.find((one) => one.id === wanted.get("run"));
  const name = run?.group ?? wanted.get("group");
  const kind = Object.values(data.kinds).find((one) => name in one.groups);
  if (!kind) return;
  if (!(metric.value in kind.metrics) || (run && !run.figures[metric.value])) {
    metric.value = run ? Object.keys(run.figures)[0] : Object.keys(kind.metrics)[0];
  }
  group.dataset.wanted = name;
  find.value = run ? run.id : "";
  unseen.checked = false;
  state.open = run ?? null;
  show();
  byId("runs-title").scrollIntoView();
  byId("runs").querySelector(run ? ".opens[aria-expanded='true']" : "thead button")?.focus({ preventScroll: true });
}

function found(data, { kind, metric, group, words, unseen }) {
  const sought = words.toLowerCase().split(/\s+/).filter(Boolean);
  return data.list.filter((run) => {
    if (run.kind !== kind || !run.figures[metric]) return false;
    if ((group && run.group !== group) || (unseen && !run.unseen)) return false;
    const text = `${run.id} ${run.words} ${run.environment}`.toLowerCase();
    return sought.every((word) => text.includes(word));
  });
}

function sortValue(run, metric, key) {
  if (key === "id" || key === "group") return run[key];
  const one = run.figures[metric];
  if (key !== "error") return one[key];
  if (metric === "fits") return Number(one.measured !== one.predicted);
  return one.error === null ? Infinity : Math.abs(one.error);
}

function sorted(runs, metric, { key, direction }) {
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return [...runs].sort((a, b) => direction * compare(sortValue(a, metric, key), sortValue(b, metric, key)));
}

function draw(data, state, runs, metric, show) {
  const shown = sorted(runs, metric, state).slice(0, state.all ? undefined : FIRST);
  const body = make("tbody", {}, shown.flatMap((run) => rowsOf(data, state, run, metric)));
  const heads = HEADS.map(([key, text]) => {
    const here = state.key === key;
    const turn = () => {
      state.direction = here ? -state.direction : key === "error" || key === "measured" || key === "predicted" ? -1 : 1;
      state.key = key;
      show();
      byId(`sort-${key}`).focus();
    };
    const arrow = make("span", { class: "arrow", "aria-hidden": "true" }, here ? (state.direction > 0 ? "▲" : "▼") : "");
    return make("th", { scope: "col", class: numeric(key), "aria-sort": here ? SAID[state.direction] : null },
      make("button", { type: "button", id: `sort-${key}`, onclick: turn }, text, arrow));
  });
  const title = Object.values(data.kinds).map((one) => one.metrics[metric]).find(Boolean).title;
  byId("runs").replaceChildren(make("table", { class: "runs" },
    make("caption", { class: "hidden" }, `Runs: ${title}, measured and predicted; a run opens to its phases`),
    make("thead", {}, make("tr", {}, heads)), body));
  const all = `${runs.length} ${runs.length === 1 ? "run has" : "runs have"} this figure`;
  byId("found").textContent = runs.length === 0 ? "No run is like that; clear a filter."
    : shown.length < runs.length ? `${all}; ${shown.length} are shown.` : `${all}.`;
  byId("more").hidden = shown.length >= runs.length;
  byId("more").textContent = `Show all ${runs.length}`;
}

const numeric = (key) => (key === "id" ? null : key === "group" ? "wide" : key === "error" ? "num" : `num ${key}`);

/** A run's row and, under it, what it opens to. */
function rowsOf(data, state, run, metric) {
  const one = run.figures[metric];
  const place = `run-${run.file}-${run.id}`.replace(/[^\w.-]/g, "_");
  const inside = make("td", { colspan: HEADS.length });
  const under = make("tr", { class: "under", id: place, hidden: true }, inside);
  const button = make("button", { type: "button", class: "opens", "aria-expanded": "false", "aria-controls": place }, run.id);
  const open = (opened) => {
    button.setAttribute("aria-expanded", String(opened));
    under.hidden = !opened;
    if (opened && !inside.firstChild) inside.append(details(data, run));
  };
  button.addEventListener("click", () => open(under.hidden));
  if (state.open === run) open(true);
  const group = data.kinds[run.kind].groups[run.group].title;
  const cells = [make("th", { scope: "row" }, button, make("span", { class: "says" }, run.words)),
    make("td", { class: "wide" }, group),
    make("td", { class: "num measured" }, amount(metric, one.measured)),
    make("td", { class: "num predicted" }, amount(metric, one.predicted)),
    make("td", { class: "num" }, errorWords(metric, one))];
  return [make("tr", {}, cells), under];
}
