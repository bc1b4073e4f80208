/* Asking about a run once: what is shown already is not asked for again, and an older question is
   given up for a newer one. */

import { post } from "./api.js";
import { current, request } from "./state.js";

/** Questions to one address; each answer goes to `show` and each refusal to `refuse`. */
export function once(path, show, refuse) {
  let under = null; // the request under way
  let shown = ""; // the run whose answer is shown
  return {
    async ask(setup, ...more) {
      const run = request(setup);
      if (shown === JSON.stringify(run)) return;
      under?.abort();
      const mine = (under = new AbortController());
      try {
        const answer = await post(path, run, { signal: mine.signal });
        if (under !== mine) return;
        shown = JSON.stringify(run);
        show(answer, setup, ...more);
      } catch (error) {
        if (error.name === "AbortError" || under !== mine) return;
        if (!error.problems) throw error;
        refuse(error);
      }
    },
    /** Give up what is under way; whether what is shown is of the current run. */
    fresh() {
      under?.abort();
      return shown === JSON.stringify(request(current()));
    },
  };
}
