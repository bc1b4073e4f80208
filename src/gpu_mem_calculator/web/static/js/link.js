/* The state as the part of an address behind `#`: set-ups joined by `|`, each a view and its
   settings in the notation of `--set`: train?model.name=llama3-8b&training.batch_size=2 */

const WHOLE = ["model.config", "inference.speculative_model"]; // objects that stay one value
/** Beside the sections: what is not modelled of the command or file that a run was read from, and
    what was assumed; and the view that it was read for, which is the page's own. */
export const BESIDE = ["limits", "notes"];
export const READ_FOR = "read_for";
const NAMES = [...BESIDE, READ_FOR];

/** A value from its text: JSON if it parses, else the text itself. */
export function parseValue(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The text that parseValue turns into the value again. */
export function valueText(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  return parseValue(value) === value ? value : JSON.stringify(value);
}

/** What stands at a dotted path, or undefined. */
export function valueAt(run, path) {
  return path.split(".").reduce((at, key) => (isObject(at) ? at[key] : undefined), run);
}

/** A copy of the run with the value at a dotted path; undefined takes it away, and with the last
    key of an object the object. */
export function withValue(run, path, value) {
  const [key, ...rest] = path.split(".");
  const gone = value === undefined || value === null;
  const inner = isObject(run[key]) ? run[key] : {};
  const next = rest.length ? withValue(inner, rest.join("."), value) : value;
  const { [key]: _, ...copy } = run;
  if (gone && (!rest.length || !Object.keys(next).length)) return copy;
  return { ...run, [key]: next };
}

/** The run without sections that say nothing. */
export function pruned(run) {
  const says = ([name, part]) => (isObject(part) || NAMES.includes(name)) && part && Object.keys(part).length;
  return Object.fromEntries(Object.entries(run).filter(says));
}

/** A set-up's settings as [path, text] pairs, without what stands beside the sections. */
export function settingsOf(run) {
  const sections = Object.entries(run).filter(([name]) => !NAMES.includes(name));
  return sections.flatMap(([section, values]) => [...leaves(section, values)]);
}

function* leaves(path, value) {
  const nested = isObject(value) && Object.keys(value).length && !WHOLE.includes(path);
  if (!nested) yield [path, valueText(value)];
  else for (const key of Object.keys(value)) yield* leaves(`${path}.${key}`, value[key]);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The hash of some set-ups, without `#`; `active` is the one that is open, if not the first. */
export function encode(setups, active = 0) {
  const parts = setups.map((one) => `${one.view}?${query(one.run)}`);
  return [...parts, ...(active ? [`open=${active + 1}`] : [])].join("|");
}

const OPEN = /(?:\||%7C)open=([1-9])$/i;

/** The index of the set-up that a hash opens. */
export function opened(hash) {
  return Number(hash.match(OPEN)?.[1] ?? 1) - 1;
}

function query(run) {
  const beside = NAMES.filter((name) => run[name] !== undefined).map((name) => [name, valueText(run[name])]);
  const text = new URLSearchParams([...settingsOf(run), ...beside]).toString();
  return text.replace(/%2F/g, "/").replace(/%3A/g, ":").replace(/%2C/g, ",");
}

/** The set-ups of a hash, and a sentence for each thing in it that cannot be read. */
export function decode(hash) {
  const text = hash.replace(/^#/, "").replace(OPEN, "");
  const problems = [];
  if (!text) return { setups: [], problems };
  // mail programs write | as %7C; within a value ? is never bare
  return { setups: text.split(/\||%7C(?=[a-z]+\?)/i).map((one) => setup(one, problems)), problems };
}

function setup(text, problems) {
  const mark = text.indexOf("?");
  const view = mark < 0 ? text : text.slice(0, mark);
  if (!/^[a-z]+$/.test(view)) {
    problems.push(`“${text.slice(0, 40)}” in the link is not a set-up; it begins with train? or serve?`);
    return { view: "train", run: {} };
  }
  let run = {};
  for (const [path, value] of new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1))) {
    if (NAMES.includes(path) || /^[a-z_]+(\.[a-z_0-9]+)+$/.test(path)) run = withValue(run, path, parseValue(value));
    else problems.push(`“${path.slice(0, 40)}” in the link is not a setting; write section.key=value`);
  }
  return { view, run };
}
