/* One control for each key of a run file: it shows a value, its default, and what is wrong. */

import { parseValue } from "./link.js";
import { reason } from "./problems.js";
import { make, count } from "./words.js";

/* Keys that are moved more than typed. `top` is where the slider ends; of `tokens`, unless the
   model has an end; `whole`: unset, it is the model's longest sequence. */
export const SLIDERS = {
  "training.batch_size": { from: 1, top: 512, unit: "sequences" },
  "training.seq_len": { from: 512, top: 131072, unit: "tokens", tokens: true, whole: true },
  "inference.batch_size": { from: 1, top: 1024, unit: "sequences" },
  "inference.prompt_len": { from: 128, top: 131072, unit: "tokens", tokens: true },
  "inference.new_tokens": { from: 16, top: 8192, unit: "tokens" },
  "inference.max_seq_len": { from: 512, top: 131072, unit: "tokens", tokens: true, whole: true },
};

/** 1, 2, 3, 4, 6, 8, 12, 16 … from one number to another, both of them in it. */
export function ladder(from, to) {
  const steps = [];
  for (let at = 1; at <= to; at *= 2) steps.push(at, 1.5 * at);
  const inner = steps.filter((one) => Number.isInteger(one) && one > from && one < to);
  return [from, ...inner, ...(to > from ? [to] : [])];
}

/** The number that a text means; 8k is 8192 of tokens, 500M of anything; other text stays text. */
export function numberOf(text) {
  const plain = text.trim().replace(/[\s,_](?=\d{3}\b)/g, "");
  const scaled = plain.match(/^(\d+(?:\.\d+)?)\s*([kmb])$/i);
  if (!scaled) return parseValue(plain);
  return Math.round(Number(scaled[1]) * { k: 1024, m: 1e6, b: 1e9 }[scaled[2].toLowerCase()]);
}

/** Words for a value, as a placeholder or an option shows it. */
export function valueWords(value, field) {
  if (value === null || value === undefined || value === "") return "";
  if (value === true) return "on";
  if (value === false) return "off";
  if (typeof value === "number") return Number.isInteger(value) && value >= 10000 ? count(value) : String(value);
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") return JSON.stringify(value);
  return field?.choices?.find((one) => one.value === value)?.title ?? String(value);
}

/** Words without the marks of code. */
const plain = (text) => text.replaceAll("`", "");

/** A label as the form writes it: its first letter large, unless it is a name. */
export function sentence(label) {
  const [first] = label.split(" ");
  return /[A-Z._]/.test(first.slice(1)) ? label : label[0].toUpperCase() + label.slice(1);
}

/** A field: label, control, a button that takes the value back, meaning and problem. */
export class Control {
  constructor(field, changed) {
    Object.assign(this, { field, changed, id: `f-${field.path.replaceAll(".", "-")}`, fallback: null });
    const described = [field.meaning ? `${this.id}-hint` : "", `${this.id}-problem`].filter(Boolean).join(" ");
    this.input = this.made({ id: this.id, "aria-describedby": described });
    this.back = make("button", { type: "button", class: "back", "aria-label": `Reset ${field.label}`, title: "Reset to the default", onclick: () => this.reset() });
    this.problem = make("p", { class: "problem", id: `${this.id}-problem`, "aria-live": "polite" });
    this.element = make(
      "div", { class: `field ${this.kind}`, "data-path": field.path },
      make("label", { for: this.id, title: `${plain(field.meaning ?? "")}\n${field.path}` }, sentence(field.label)),
      make("div", { class: "field-input" }, this.back, this.input),
      field.meaning ? make("p", { class: "hint", id: `${this.id}-hint` }, plain(field.meaning), " ", make("code", {}, field.path)) : "",
      this.problem,
      this.suggestions(),
    );
  }

  /* Values that are offered, where others may be typed, too. */
  suggestions() {
    if (this.kind !== "text" || !this.field.choices?.length) return "";
    return make("datalist", { id: `${this.id}-list` }, this.field.choices.map((one) => make("option", { value: one.value })));
  }

  /** What kind of control it is, also its class. */
  get kind() {
    return "text";
  }

  made(attributes) {
    const mode = { count: "numeric", size: "numeric", number: "decimal" }[this.field.kind] ?? null;
    const input = make("input", {
      ...attributes, type: "text", inputmode: mode, spellcheck: "false", list: this.field.choices?.length ? `${this.id}-list` : null,
      oninput: () => this.typed(), onkeydown: (event) => mode && this.arrow(event), onblur: () => this.draw(),
    });
    return input;
  }

  typed() {
    const text = this.input.value.trim();
    if (this.field.kind === "list") this.changed(text ? listOf(text) : undefined);
    else this.changed(text ? (this.input.inputMode ? numberOf(text) : parseValue(text)) : undefined);
  }

  /* Arrow keys move a number by one step. */
  arrow(event) {
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const now = this.value ?? this.fallback;
    if (!by || typeof now !== "number") return;
    event.preventDefault();
    const next = this.step(now, by);
    if (next < (this.field.minimum ?? 0)) return;
    this.input.value = String(next);
    this.changed(next);
  }

  step(now, by) {
    return Number.isInteger(now) ? now + by : Math.round((now + by / 100) * 100) / 100;
  }

  reset() {
    this.changed(undefined);
    this.input.focus();
  }

  /** Show a value (undefined: none), the default behind it, and a problem. */
  show(value, fallback, problem) {
    Object.assign(this, { value, fallback });
    const typing = document.activeElement === this.input && this.kind === "text";
    if (!typing || value === undefined) this.draw();
    this.placeholder();
    this.element.classList.toggle("set", value !== undefined);
    this.back.disabled = value === undefined;
    if (this.problem.textContent !== (problem ?? "")) this.problem.textContent = problem ?? "";
    if (problem) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }

  draw() {
    const shown = this.value === undefined ? "" : this.written();
    if (this.input.value !== shown && !(document.activeElement === this.input && !shown && !this.input.value.trim())) this.input.value = shown;
  }

  written() {
    if (Array.isArray(this.value)) return this.value.join(", ");
    return typeof this.value === "object" ? JSON.stringify(this.value) : String(this.value);
  }

  placeholder() {
    this.input.placeholder = valueWords(this.fallback, this.field) || this.field.unset || AUTO;
  }
}

function listOf(text) {
  if (["all-linear", "true", "false"].includes(text) || text.startsWith("[")) return parseValue(text);
  return text.split(/[\s,]+/).filter(Boolean).map(parseValue);
}

/** A choice among a few; that of the default stands for nothing set. */
class Choice extends Control {
  get kind() {
    return "choice";
  }

  made(attributes) {
    return make("select", { ...attributes, onchange: () => this.chosen() });
  }

  chosen() {
    const value = this.input.value;
    this.changed(value === "" ? undefined : JSON.parse(value));
  }

  draw() {
    const now = JSON.stringify(this.value ?? this.fallback);
    this.input.value = [...this.input.options].some((one) => one.value === now) ? now : "";
    this.element.classList.toggle("wide", this.input.selectedOptions[0].textContent.length > LONG);
  }

  show(value, fallback, problem) {
    this.offer(value, fallback);
    super.show(value, fallback, problem);
  }

  /** What is sent for a choice. */
  sent(value) {
    return value;
  }

  /** The options that are not chosen; an empty one stands for nothing set. */
  others() {
    return [...this.input.options].filter((one) => !one.selected).map((one) => one.value);
  }

  /** Grey the options that would be refused: a sentence by option. */
  refuse(sentences) {
    this.refused = sentences;
    for (const one of this.input.options) this.grey(one);
  }

  grey(option) {
    const said = this.refused?.get(option.value);
    option.disabled = said !== undefined;
    option.title = said ?? "";
    option.dataset.words ??= option.textContent;
    option.textContent = said ? `${option.dataset.words}: ${reason(said, this.field.path)}` : option.dataset.words;
  }

  offer(value, fallback) {
    const given = [...this.field.choices];
    const has = (one) => given.some((other) => JSON.stringify(other.value) === JSON.stringify(one));
    if (value !== undefined && !has(value)) given.push({ value, title: valueWords(value) });
    if (fallback !== null && !has(fallback)) given.push({ value: fallback, title: valueWords(fallback) });
    const key = JSON.stringify([given, fallback]);
    if (this.offered === key) return;
    this.offered = key;
    const options = given.map((one) => this.option(one, fallback));
    if (fallback === null) options.unshift(make("option", { value: "" }, AUTO));
    this.input.replaceChildren(...options);
    for (const one of options) this.grey(one);
  }

  option({ value, title }, fallback) {
    const usual = !this.field.plain && fallback !== null && JSON.stringify(value) === JSON.stringify(fallback);
    return make("option", { value: usual ? "" : JSON.stringify(value) }, usual ? `${plain(title)} (default)` : plain(title));
  }

  placeholder() {}
}

const LONG = 24; // letters of a choice that needs a line of its own
const AUTO = "auto"; // nothing is set, and what then holds depends on the run
const ON = [{ value: true, title: "on" }, { value: false, title: "off" }];

/** A text field with a slider below it, in even steps of proportion. */
class Slider extends Control {
  constructor(field, changed) {
    super(field, changed);
    this.spec = SLIDERS[field.path];
    this.range = make("input", { type: "range", min: 0, "aria-label": `${field.label}, slider`, oninput: () => this.moved() });
    this.element.classList.add("slider");
    this.element.querySelector(".field-input").after(this.range);
    this.limit(null);
  }

  /** Where the slider ends: the model's own limit, where it has one and that matters. */
  limit(most) {
    this.top = (this.spec.tokens && most) || this.spec.top;
  }

  moved() {
    const value = this.steps[Number(this.range.value)];
    this.input.value = String(value);
    this.changed(value);
  }

  step(now, by) {
    return now + by;
  }

  show(value, fallback, problem) {
    super.show(value, fallback, problem);
    const known = Number(value ?? fallback) > 0;
    const now = known ? Number(value ?? fallback) : this.spec.from;
    this.steps = ladder(Math.min(this.spec.from, Math.max(1, Math.floor(this.top / 16))), Math.max(this.top, now));
    this.range.max = this.steps.length - 1;
    const at = this.steps.findIndex((one) => one >= now);
    this.range.value = String(at < 0 ? 0 : at);
    this.range.classList.toggle("unset", !known);
    this.range.setAttribute("aria-valuetext", known ? `${count(now)} ${this.spec.unit}` : AUTO);
  }
}

/** A count with buttons for one less and one more. */
export class Stepper extends Control {
  constructor(field, changed) {
    super(field, changed);
    const less = make("button", { type: "button", class: "by-one", "aria-label": "One less", onclick: () => this.moved(-1) }, "−");
    const more = make("button", { type: "button", class: "by-one", "aria-label": "One more", onclick: () => this.moved(1) }, "+");
    this.element.classList.add("stepper");
    this.input.before(less);
    this.input.after(more);
    this.less = less;
  }

  moved(by) {
    const now = Number(this.value ?? this.fallback ?? 1) || 1;
    this.changed(Math.max(1, now + by));
  }

  show(value, fallback, problem) {
    super.show(value, fallback, problem);
    this.draw();
    this.less.disabled = Number(value ?? fallback ?? 1) <= 1;
  }
}

/** Whether something is there at all: on is an object without keys. */
class Presence extends Choice {
  constructor(field, changed) {
    const choices = [{ value: true, title: "on" }, { value: false, title: "off" }];
    super({ ...field, choices }, (value) => changed(value === true ? {} : undefined));
  }

  show(value, _fallback, problem) {
    super.show(value === undefined ? undefined : true, false, problem);
  }

  /** What is sent for a choice. */
  sent(value) {
    return value ? {} : null;
  }
}

/** The control that a field asks for. */
export function controlFor(field, changed, moved) {
  if (moved && SLIDERS[field.path]) return new Slider(field, changed);
  if (field.kind === "choice") return new Choice(field, changed);
  if (field.kind === "flag") return new Choice({ ...field, choices: ON }, changed);
  if (field.kind === "object") return new Presence(field, changed);
  return new Control(field, changed);
}
