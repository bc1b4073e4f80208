/* Asking the service. An answer is JSON; anything else is an Error with `problems`, a list of
   sentences, `status` (0 where nothing answered), and `files`, names of those that are missing. */

const LONGEST = 10; // seconds to wait when the service says it is busy
const BUSY = [429, 503]; // statuses after which the same request is sent again
const TRIES = 4;

/** Ask for something: get("/api/gpus"). */
export function get(path, { query, signal } = {}) {
  return ask(address(path, query), { signal });
}

/** Send a body and read the answer: post("/api/look", run, {query: {width: 900}, signal}). */
export function post(path, body, { query, signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  return ask(address(path, query), { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** Send a file as it is. */
export function postFile(path, file, { query, signal } = {}) {
  const headers = { "Content-Type": "application/octet-stream" };
  return ask(address(path, query), { method: "POST", headers, body: file, signal });
}

function address(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

async function ask(url, options) {
  let answer = await send(url, options);
  for (let tries = 1; BUSY.includes(answer.status) && tries < TRIES; tries++) {
    await pause(Number(answer.headers.get("Retry-After")) || 1, options.signal);
    answer = await send(url, options);
  }
  const data = await answer.json().catch(() => null);
  if (answer.ok && data !== null) return data;
  throw failure(answer.status, data);
}

async function send(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw failure(0, { problems: ["The service does not answer; is it still running?"] });
  }
}

function failure(status, data) {
  const told = data?.problems?.length ? data.problems : [data?.detail].filter((x) => typeof x === "string");
  const problems = told.length ? told : [`The service answered ${status} without a reason.`];
  return Object.assign(new Error(problems.join("; ")), { problems, status, files: data?.files ?? [] });
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("no longer wanted", "AbortError"));
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    setTimeout(resolve, 1000 * Math.min(seconds, LONGEST));
  });
}
