/* Which choices of the form would be refused, and why: asked of the service once the page is at rest. */

import { post } from "./api.js";
import { current, request } from "./state.js";

const PAUSE = 250; // milliseconds without a change

let timer = 0;
let under = null; // the request under way
let asked = ""; // what the last answer is of

/** Ask about the choices of the controls in sight and of switches; `settingsFor(path, value)` gives
    the settings that choosing a value changes. */
export function greyChoices(controls, switches, settingsFor) {
  clearTimeout(timer);
  timer = setTimeout(() => ask(controls, switches, settingsFor), PAUSE);
}

async function ask(controls, switches, settingsFor) {
  const run = request(current());
  const offered = [...controls.values()].filter((one) => one.others && one.element.checkVisibility());
  const sent = (control, option) => settingsFor(control.field.path, control.sent(option === "" ? null : JSON.parse(option)));
  const of = offered.flatMap((control) => control.others().map((option) => ({ control, option, settings: sent(control, option) })));
  const buttons = switches.flatMap((one) => one.choices());
  const choices = [...of, ...buttons].map((one) => one.settings);
  const question = JSON.stringify({ run, choices });
  if (question === asked) return;
  asked = question;
  under?.abort();
  const mine = (under = new AbortController());
  try {
    const { refused } = await post("/api/choices", { run, choices }, { signal: mine.signal });
    if (under !== mine) return;
    for (const control of offered) {
      const said = of.map((one, i) => [one, refused[i]]).filter(([one, why]) => one.control === control && why);
      control.refuse(new Map(said.map(([one, why]) => [one.option, why])));
    }
    for (const one of switches) one.refuse(new Map(buttons.map(({ input }, i) => [input, refused[of.length + i]])));
  } catch (error) {
    if (under === mine) asked = ""; // nothing is greyed, and the next change asks again
    if (error.name !== "AbortError" && !error.problems) throw error;
  }
  document.documentElement.dataset.choices = String(performance.now());
}
