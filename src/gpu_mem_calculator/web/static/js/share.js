/* Sharing: the link is the state, so that it shows the same to whoever opens it. */

import { encode } from "./link.js";
import { active, current, request, setups } from "./state.js";
import { command, copy, make } from "./words.js";

/** The page's address with its state. */
export function link() {
  return `${location.origin}${location.pathname}#${encode(setups(), active())}`;
}

/** The button that copies the link. */
export function shareButton() {
  const label = make("span", { class: "label" }, "Share");
  const button = make("button", { type: "button", class: "button", title: "Copy a link that shows exactly this" }, label);
  button.addEventListener("click", () => copy(link(), "link", button));
  return button;
}

/** A name for files of the current set-up: llama3-8b-fsdp-8x-h100-80gb-sxm. */
export function fileName() {
  const { model = {}, hardware = {}, engine, inference } = request(current());
  const cards = `${hardware.num_gpus ?? inference?.tensor_parallel_size ?? 1}x`;
  const words = [model.name ?? "model", inference ? (inference.engine ?? "vllm") : engine?.type, cards, hardware.gpu ?? hardware.gpu_memory_gb];
  return words.filter(Boolean).join("-").toLowerCase().replace(/[^a-z0-9.]+/g, "-");
}

/** The run file as text. */
export function runText() {
  return `${JSON.stringify(request(current()), null, 2)}\n`;
}

/** The command line of the current set-up. */
export function commandText() {
  return command(request(current()));
}
