/* The question for plans: pickers of model and card, and the fields of what is planned. */

import { cardNamed, cardWords, modelWords, parameters, presetNamed, typedCard, typedModel } from "./catalogue.js";
import { Picker } from "./picker.js";
import { make } from "./words.js";

/* What a goal looks for, which is then not asked. */
const SOUGHT = { fewest_gpus: ["gpus"], longest_context: ["seq_len"], largest_batch: ["global_batch", "users"], largest_model: ["model"] };
const BEGIN = { model: "llama3.1-8b", gpu: "h100-80gb-sxm", gpus: "8", seq_len: "8192", global_batch: "128" };

export class PlanForm {
  /** A form in an element; `facts` of the service, `changed` is called after each change. */
  constructor(form, facts, changed) {
    Object.assign(this, { form, facts, changed, model: "", gpu: "" });
    const pick = (name) => (option) => {
      this[name] = typeof option.value === "string" ? option.value : option.value.num_parameters ?? "";
      this.show();
      changed();
    };
    this.models = new Picker({ id: "model", label: "Model", placeholder: "a name, or a size such as 7B", options: () => facts.models, also: (text) => typedModel(text, facts.presets), picked: pick("model") });
    this.cards = new Picker({ id: "card", label: "Card", placeholder: "such as H100", options: () => facts.cards, also: (text) => typedCard(text).filter((one) => typeof one.value === "string"), picked: pick("gpu") });
    form.querySelector("[data-pickers]").replaceWith(this.models.element, this.cards.element);
    for (const kind of ["training", "serving"]) {
      const rows = facts.engines.filter((one) => (one.kind === "training") === (kind === "training"));
      this.field(kind === "training" ? "engine" : "serve").append(...rows.map((one) => make("option", { value: one.name }, one.title)));
    }
    form.addEventListener("input", (event) => {
      if (event.target.closest(".picker")) return;
      this.show();
      changed();
    });
  }

  field(name) {
    return this.form.elements[name];
  }

  get mode() {
    return this.form.elements.mode.value;
  }

  get sought() {
    return SOUGHT[this.field("goal").value] ?? [];
  }

  /** Fill the form with the words of an address; without a question, with an example. */
  fill(words) {
    const given = ["model", "gpu", "gpus"].some((name) => words.has(name)) ? Object.fromEntries(words) : BEGIN;
    this.form.elements.mode.value = given.serve ? "serve" : "train";
    this.model = given.model ?? "";
    this.gpu = given.gpu ?? "";
    for (const one of this.form.querySelectorAll("[name]:not([name=mode])")) {
      const value = given[one.name] ?? (one.matches("select") ? one.options[0].value : "");
      one.value = value !== "" && one.dataset.scale ? Number(value) / Number(one.dataset.scale) : value;
    }
    this.show();
  }

  /** Show what the mode and the goal ask, and what is chosen. */
  show() {
    for (const one of this.form.querySelectorAll("[data-of]")) one.hidden = one.dataset.of !== this.mode;
    for (const one of this.form.querySelectorAll("input[name]")) one.disabled = this.sought.includes(one.name);
    this.models.input.disabled = this.sought.includes("model");
    const { presets, gpus } = this.facts;
    const [model, card] = [presetNamed(presets, this.model), cardNamed(gpus, this.gpu)];
    const own = this.model.startsWith("{");
    const title = own ? "own sizes" : /^[\d.]+[bmt]?$/i.test(this.model) ? `${this.model} parameters` : modelWords({ name: this.model }, presets);
    this.models.show(this.model && title, model ? `${parameters(model.num_parameters)} parameters` : "", "");
    this.cards.show(this.gpu && cardWords({ gpu: this.gpu }, gpus), card ? `${(card.memory_bytes / 2 ** 30).toFixed(1)} GiB usable` : "", "");
  }

  /** What is asked, in the names of the service; what is left empty or looked for is left out. */
  question() {
    const asked = {};
    if (!this.sought.includes("model") && this.model) asked.model = this.model.startsWith("{") ? JSON.parse(this.model) : this.model;
    if (this.gpu) asked.gpu = this.gpu;
    for (const one of this.form.querySelectorAll("[name]:not([name=mode])")) {
      const text = one.value.trim();
      const unasked = one.disabled || one.closest("[hidden]") || text === "" || (one.name === "goal" && text === "fastest");
      if (!unasked) asked[one.name] = one.type === "number" ? Number((Number(text) * Number(one.dataset.scale ?? 1)).toPrecision(12)) : text;
    }
    return asked;
  }

  /** A sentence of the service with the words of this form. */
  inWords(sentence) {
    const labels = [...this.form.querySelectorAll("[name]:not([name=mode])")].map((one) => [one.name, one.labels[0].firstChild.textContent.trim()]);
    const words = new Map([...labels, ["model", "Model"], ["gpu", "Card"]]);
    return sentence.replace(/\bplan\.(?=[a-z])/g, "").replace(/\b[a-z]+(?:_[a-z]+)*\b(?==)|\b[a-z]+(?:_[a-z]+)+\b|\bgpus\b/g, (name) => (words.has(name) ? `“${words.get(name)}”` : name)).replace(/”=/g, "” ");
  }
}
