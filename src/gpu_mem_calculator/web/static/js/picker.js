/* A text field that searches a list: an ARIA combobox with a listbox below it.

   An option is {value, title, note, size, words, spellings, kin, rank}: what is chosen, what is read,
   what is small below it, what stands at the right, the text that is searched, texts that mean the
   option itself, another text that counts less, and which comes first of those that match alike. */

import { make } from "./words.js";

const SHOWN = 300; // options drawn at most

/** The options whose words have every word of the text, best first. */
export function search(options, text) {
  const asked = pieces(text);
  if (!asked.length) return options;
  const words = spell(text);
  const scored = options.map((option, order) => ({ option, order, score: spelled(option, words) ?? score(option, asked) }));
  const whole = text.trim().toLowerCase();
  for (const one of scored) if (String(one.option.value).toLowerCase() === whole) one.score = -3;
  const found = scored.filter((one) => one.score !== null);
  found.sort((a, b) => a.score - b.score || rank(a) - rank(b) || a.order - b.order);
  return found.map((one) => one.option);
}

const rank = (one) => one.option.rank ?? 0;

/** A name in words, as the service spells it: `Llama-3.1-8B` is "llama 3.1 8b". */
export function spell(text) {
  const last = String(text ?? "").toLowerCase().split("/").pop().replace(/(?<=\d)_(?=\d)/g, ".").replace(/(?<=[a-z])(?=\d)/g, " ");
  return (last.match(/\d+(?:\.\d+)*[a-z]*|[a-z]+/g) ?? []).join(" ");
}

/* A text that means the option, or with which such a text begins, is better than one whose words it has. */
function spelled(option, text) {
  if (!option.spellings || !text) return null;
  if (option.spellings.includes(text)) return -2;
  return option.spellings.some((one) => one.startsWith(`${text} `)) ? -1 : null;
}

function pieces(text) {
  return text.toLowerCase().split(/[^a-z0-9.]+/).filter(Boolean);
}

/* The sum over the words asked for; less is better, null where one is missing. */
function score(option, asked) {
  option.split ??= [...new Set(pieces(option.words))];
  option.joined ??= option.words.toLowerCase().replace(/[^a-z0-9.]/g, "");
  let sum = 0;
  for (const word of asked) {
    const one = wordScore(option, word);
    if (one === null) return null;
    sum += one;
  }
  return sum;
}

function wordScore(option, word) {
  if (option.split.includes(word)) return 0;
  if (option.split.some((one) => one.startsWith(word))) return 2;
  if (option.joined.includes(word)) return 4;
  if (option.kin?.includes(word)) return 6;
  return word.length > 3 && option.split.some((one) => lacks(word, one)) ? 8 : null;
}

/* Whether a word is another with a letter or two left out: "mstral" of "mistral". */
function lacks(word, whole) {
  let at = -1;
  const near = word[0] === whole[0] && whole.length - word.length <= 2;
  return near && [...word].every((letter) => (at = whole.indexOf(letter, at + 1)) >= 0);
}

/** A picker: `options()` gives the list, `also(text)` more for what is typed, `picked(option)` takes it. */
export class Picker {
  constructor({ id, label, placeholder, options, also, picked }) {
    Object.assign(this, { id, options, also, picked, shown: [], at: -1, typed: false, text: "" });
    this.input = make("input", {
      id, type: "text", role: "combobox", placeholder, spellcheck: "false", autocomplete: "off", autocapitalize: "off",
      "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": `${id}-list`,
      "aria-describedby": `${id}-hint ${id}-problem`,
    });
    this.list = make("ul", { id: `${id}-list`, role: "listbox", "aria-label": `${label}: what there is`, hidden: true });
    this.hint = make("p", { id: `${id}-hint`, class: "hint" });
    this.problem = make("p", { id: `${id}-problem`, class: "problem", "aria-live": "polite" });
    this.label = make("label", { for: id }, label);
    const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
    const box = make("div", { class: "picker-box" }, this.input, arrow, this.list);
    this.element = make("div", { class: "picker" }, this.label, box, this.hint, this.problem);
    this.listen();
  }

  listen() {
    this.input.addEventListener("input", () => this.type());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("focus", () => this.input.select());
    this.input.addEventListener("click", () => this.list.hidden && this.open(""));
    this.input.addEventListener("blur", () => this.leave());
    this.list.addEventListener("pointerdown", (event) => event.preventDefault());
    this.list.addEventListener("click", (event) => {
      const item = event.target.closest("[role=option]");
      if (item) this.pick(Number(item.dataset.at));
    });
  }

  /** Show what is chosen, unless something is being typed. */
  show(text, hint, problem) {
    this.text = text;
    if (!this.typed) this.input.value = text;
    if (this.hint.textContent !== hint) this.hint.textContent = hint;
    if (this.problem.textContent !== problem) this.problem.textContent = problem;
    if (problem) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }

  type() {
    this.typed = true;
    this.open(this.input.value);
  }

  open(text) {
    const more = this.also(text);
    const found = search(this.options(), text);
    this.shown = [...more.filter((one) => !one.late), ...found, ...more.filter((one) => one.late)].slice(0, SHOWN);
    this.at = -1;
    const items = this.shown.map((option, at) => this.item(option, at));
    const none = make("li", { class: "none", role: "option", "aria-disabled": "true" }, "Nothing of that name.");
    this.list.replaceChildren(...(items.length ? items : [none]));
    this.list.hidden = false;
    this.list.scrollTop = 0;
    this.input.setAttribute("aria-expanded", "true");
    if (text && items.length) this.move(0);
    else this.moveToChosen();
  }

  item(option, at) {
    const attributes = { role: "option", id: `${this.id}-${at}`, "data-at": at, "aria-selected": "false" };
    const name = make("span", { class: "option-name" }, option.title);
    const note = option.note ? make("span", { class: "option-note" }, option.note) : "";
    const size = option.size ? make("span", { class: "option-size" }, option.size) : "";
    return make("li", attributes, make("span", { class: "option-words" }, name, note), size);
  }

  moveToChosen() {
    const chosen = this.shown.findIndex((option) => option.title === this.text);
    if (chosen >= 0) this.move(chosen);
    else this.input.removeAttribute("aria-activedescendant");
  }

  move(at) {
    this.list.children[this.at]?.setAttribute("aria-selected", "false");
    this.at = at;
    const item = this.list.children[at];
    item.setAttribute("aria-selected", "true");
    this.input.setAttribute("aria-activedescendant", item.id);
    const [top, bottom] = [item.offsetTop, item.offsetTop + item.offsetHeight];
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (bottom > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = bottom - this.list.clientHeight;
  }

  step(by) {
    if (this.list.hidden) this.open("");
    else if (this.shown.length) this.move((this.at + by + this.shown.length) % this.shown.length);
  }

  key(event) {
    const open = !this.list.hidden;
    const moves = { ArrowDown: 1, ArrowUp: this.at < 0 ? 0 : -1, PageDown: 8, PageUp: -8 };
    if (event.key in moves && (open || event.key.startsWith("Arrow"))) {
      event.preventDefault();
      const far = event.key.startsWith("Page");
      if (far && this.shown.length) this.move(Math.max(0, Math.min(this.shown.length - 1, this.at + moves[event.key])));
      else if (!far) this.step(moves[event.key]);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (open && this.at >= 0) this.pick(this.at);
    } else if (event.key === "Escape" && (open || this.typed)) {
      event.preventDefault();
      event.stopPropagation();
      this.close();
      this.input.select();
    } else if (event.key === "Tab" && open && this.typed && this.at >= 0) this.pick(this.at);
  }

  pick(at) {
    const option = this.shown[at];
    if (!option) return;
    this.close();
    this.input.value = option.title;
    this.input.select();
    this.picked(option);
  }

  close() {
    this.typed = false;
    this.list.hidden = true;
    this.input.value = this.text;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  /* What was typed in full, or what nothing in the list is like, counts though nobody pressed Enter;
     the rest is put back. */
  leave() {
    const typed = this.input.value.trim().toLowerCase();
    const whole = (one) => one.exact || [one.title, one.value].some((x) => String(x).toLowerCase() === typed);
    const exact = this.shown.length === 1 ? 0 : this.shown.findIndex(whole);
    if (this.typed && typed && exact >= 0) this.pick(exact);
    else this.close();
  }
}
