/* Asking the service. An answer is JSON; anything else is an Error with `problems`, a list of
   sentences, `status` (0 where nothing answered), and `files`, names of those that are missing. */

const LONGEST = 10; // seconds to wait when the service says it is busy
const BUSY = [429, 503]; // statuses after which the same request is sent again
const TRIES = 4;
const CUT = { problems: ["The answer ended before it was whole; try again."] };

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
  return read(await sent(url, options));
}

/* The answer to a request, which is sent again while the service is busy. */
async function sent(url, options) {
  let answer = await send(url, options);
  for (let tries = 1; BUSY.includes(answer.status) && tries < TRIES; tries++) {
    await pause(Number(answer.headers.get("Retry-After")) || 1, options.signal);
    answer = await send(url, options);
  }
  return answer;
}

async function read(answer) {
  const data = await answer.json().catch(() => null);
  if (answer.ok && data !== null) return data;
  throw failure(answer.status, data);
}

/** Send a body and be told of each event of the answer: on.plan(data) of the event `plan`. */
export async function stream(path, body, on, { query, signal } = {}) {
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  const answer = await sent(address(path, query), { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!answer.ok) return read(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let ended = false;
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : failure(0, CUT);
    });
    if (done) break;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const one of events) {
      const [, name, data] = one.match(/^event: (\w+)\ndata: (.*)$/s) ?? [];
      ended ||= name === "done";
      if (name) on[name]?.(JSON.parse(data));
    }
  }
  if (!ended) throw failure(0, CUT);
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
