/* The menu of what can be taken away: run file, report, picture, command. */

import { settingsOf } from "./link.js";
import { post } from "./api.js";
import { commandText, fileName, runText } from "./share.js";
import { current, request } from "./state.js";
import { copy, flash, make, say } from "./words.js";

const WIDTH = 1000; // of a picture that is saved
const SHARP = 2; // pixels of a PNG for each of the picture's

let menu = null;
let button = null;

/** What the menu offers: a title, a word on it, what it does, and when it is there. */
const ITEMS = [
  ["Run file", "JSON, for the command line", () => save(json(runText()), `${fileName()}.json`)],
  ["DeepSpeed config", "JSON, for deepspeed", deepspeed, () => /deepspeed/.test(current().run.engine?.type) && current().view === "train"],
  ["Report", "one HTML file with everything", report],
  ["Picture, SVG", "for slides and print", svg],
  ["Picture, PNG", "2,000 pixels wide", png],
  ["Copy the run file", "as JSON", () => copy(runText(), "run file", button)],
  ["Copy the command", "gpu-mem-calc …", () => copy(commandText(), "command", button)],
  ["Print", "", () => window.print()],
];

/** The button and its menu. */
export function downloadMenu() {
  button = make(
    "button",
    { type: "button", class: "button", "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": "download-menu" },
    make("span", { class: "label" }, "Save"),
    make("span", { "aria-hidden": "true" }, " ▾"),
  );
  const items = ITEMS.map(([title, says, act, offered = () => true]) => {
    const about = { type: "button", role: "menuitem", tabindex: "-1", onclick: () => chosen(title, act) };
    const item = make("button", about, make("span", {}, title), make("span", { class: "soft" }, says));
    return Object.assign(item, { offered });
  });
  menu = make("div", { class: "menu", id: "download-menu", role: "menu", "aria-label": "Save", hidden: true }, items);
  button.addEventListener("click", () => show(menu.hidden));
  button.addEventListener("keydown", (event) => event.key === "ArrowDown" && (show(true), event.preventDefault()));
  menu.addEventListener("keydown", keys);
  document.addEventListener("pointerdown", (event) => menu.parentElement.contains(event.target) || show(false));
  return make("div", { class: "menu-holder", onfocusout: left }, button, menu);
}

function left(event) {
  if (event.relatedTarget && !event.currentTarget.contains(event.relatedTarget)) show(false);
}

function show(open) {
  for (const item of menu.children) item.hidden = !item.offered();
  menu.hidden = !open;
  button.setAttribute("aria-expanded", String(open));
  if (open) menu.firstElementChild.focus();
}

function keys(event) {
  const items = [...menu.children].filter((item) => !item.hidden);
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to !== undefined) items.at(to % items.length).focus();
  else if (event.key === "Escape") {
    show(false);
    button.focus();
  } else return;
  event.preventDefault();
}

async function chosen(title, act) {
  show(false);
  button.focus();
  try {
    await act();
  } catch (error) {
    say(`${title}: ${error.message}`);
    flash(button, "Not possible");
    button.title = error.message;
  }
}

/* A file for the browser to keep: the address of a blob is only followed, never shown. */
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const follow = make("a", { href: address, download: name });
  document.body.append(follow);
  follow.click();
  follow.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  say(`${name} is saved.`);
}

async function report() {
  flash(button, "Working…");
  const body = JSON.stringify(request(current()));
  const answer = await fetch("/api/report", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  if (!answer.ok) throw new Error((await answer.json()).detail ?? `the service answered ${answer.status}`);
  save(await answer.blob(), `${fileName()}.html`);
}

const json = (text) => new Blob([text], { type: "application/json" });

async function deepspeed() {
  const { content } = await post("/api/export/deepspeed", request(current()));
  save(json(content), `${fileName()}-deepspeed.json`);
}

/* The picture's own address; the theme is the page's. */
function pictureAddress() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const query = new URLSearchParams([...settingsOf(request(current())), ["width", WIDTH], ["theme", theme]]);
  return `/api/picture.svg?${query}`;
}

async function svg() {
  const answer = await fetch(pictureAddress());
  if (!answer.ok) throw new Error((await answer.json()).detail ?? `the service answered ${answer.status}`);
  save(await answer.blob(), `${fileName()}.svg`);
}

async function png() {
  const image = new Image();
  image.src = pictureAddress();
  await image.decode();
  const canvas = make("canvas", { width: image.naturalWidth * SHARP, height: image.naturalHeight * SHARP });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  save(await new Promise((done) => canvas.toBlob(done, "image/png")), `${fileName()}.png`);
}
