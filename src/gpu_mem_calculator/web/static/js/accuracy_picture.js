/* Errors on a logarithmic axis, a row for each group: numbered circles and diamonds, so that
   nothing hangs on colour. Drawn as wide as its place, and again when that changes. */

import { percent } from "./accuracy_data.js";
import { draw } from "./words.js";

const LEAST = 0.001; // percent; what is smaller stands here
const RADIUS = 9, LANE = 21, PAD = 9, HEAD = 8, FOOT = 44, NARROW = 620, LABEL = 158;

/** A picture: rows of {title, marks: [{value, sign, says}], worst?}, kept as wide as `place`. */
export function plot(place, { title, says, axis, most, rows }) {
  let width = 0;
  const paint = () => {
    const now = Math.max(280, Math.floor(place.clientWidth));
    if (now === width) return;
    width = now;
    place.replaceChildren(drawn(width, { title, says, axis, most, rows }));
  };
  new ResizeObserver(paint).observe(place);
  paint();
}

function drawn(width, { title, says, axis, most, rows }) {
  const narrow = width < NARROW;
  const left = narrow ? 14 : LABEL, right = width - 16;
  const decades = Math.log10(most / LEAST);
  const x = (value) => left + ((right - left) * Math.log10(Math.max(value, LEAST) / LEAST)) / decades;
  const parts = [];
  let y = HEAD;
  for (const row of rows) {
    const made = rowParts(row, { x, y, left, right, narrow });
    parts.push(...made.parts);
    y = made.end;
  }
  const id = identity(title);
  return draw("svg", { class: "errors", viewBox: `0 0 ${width} ${y + FOOT}`, width, height: y + FOOT,
                       role: "img", "aria-labelledby": `${id}-title ${id}-desc` },
    draw("title", { id: `${id}-title` }, title), draw("desc", { id: `${id}-desc` }, says),
    ...ticks({ x, y, left, right, most, axis, narrow }), ...parts);
}

const identity = (title) => title.toLowerCase().replace(/\W+/g, "-");

function ticks({ x, y, left, right, most, axis, narrow }) {
  const made = [];
  for (let value = LEAST; value <= most * 1.001; value *= 10) {
    const at = x(value);
    const text = value < 1 ? value.toFixed(-Math.round(Math.log10(value))) : value.toFixed(0);
    const first = Math.abs(value - LEAST) < 1e-9;
    made.push(draw("path", { class: "grid", d: `M${at} ${HEAD}V${y}` }),
              draw("text", { class: first && narrow ? "tick first" : "tick", x: first && narrow ? 0 : at, y: y + 16 }, first ? `≤ ${text}` : text));
  }
  made.push(draw("text", { class: "axis", x: (left + right) / 2, y: y + 36 }, axis));
  return made;
}

/** One row: its name, its line, and its marks in as many lanes as keep them apart. */
function rowParts(row, { x, y, left, right, narrow }) {
  const top = y + PAD + (narrow ? 16 : 0);
  const ends = [];
  const parts = [];
  const marks = row.marks.map((mark) => ({ ...mark, at: x(mark.value) })).sort((a, b) => a.at - b.at);
  for (const mark of marks) {
    let lane = ends.findIndex((end) => mark.at - end >= 2 * RADIUS + 1);
    if (lane < 0) lane = ends.length;
    ends[lane] = mark.at;
    mark.height = top + RADIUS + lane * LANE;
    parts.push(markShape(mark, mark.at, mark.height));
  }
  const end = top + Math.max(1, ends.length) * LANE + PAD - 2;
  const middle = top + RADIUS;
  const label = narrow
    ? draw("text", { class: "row-name", x: left - 10, y: y + PAD + 7 }, row.title)
    : draw("text", { class: "row-name", x: 0, y: middle + 4 }, row.title);
  const whisker = row.worst === undefined ? [] : [draw("path", { class: "whisker",
    d: `M${x(row.worst.from)} ${marks.find((mark) => mark.sign === "all").height}H${x(row.worst.value)}m0 -6v12` }, draw("title", {}, row.worst.says))];
  const line = draw("path", { class: "rule", d: `M0 ${end}H${right}` });
  return { parts: [line, label, ...whisker, ...parts], end };
}

function markShape(mark, at, y) {
  const note = draw("title", {}, mark.says);
  if (mark.sign === "ours" || mark.sign === "all") {
    return draw("path", { class: `diamond ${mark.sign}`, d: `M${at} ${y - 9}l9 9l-9 9l-9-9z` }, note);
  }
  return draw("g", { class: "numbered" }, note,
    draw("circle", { cx: at, cy: y, r: RADIUS }),
    draw("text", { x: at, y: y + 3.8 }, mark.sign));
}

/** A mark by itself, for the key. */
export function sample(sign) {
  return draw("svg", { class: "sample errors", viewBox: "0 0 24 22", width: 24, height: 22, "aria-hidden": "true" },
    sign === "worst" ? draw("path", { class: "whisker", d: "M1 11H20m0 -6v12" }) : markShape({ sign, says: "" }, 12, 11));
}

/** How a mean is told in a note. */
export const told = (name, figures) => `${name}: ${percent(figures.mean)} in the mean of ${figures.n} runs, worst ${percent(figures.worst)}`;
