/* The page without a server: what it asks a service for is answered here.

   Facts are files. Calculations are made by calculator.js, one after another; a request that was
   given up before its turn is left out. What was answered is kept, so that a link that was opened
   before is drawn at once. */

(() => {
  const VERSION = "@version@";
  const MEGABYTES = "@megabytes@";
  const FACTS = @facts@; // addresses of facts, which are files here
  const KEPT = 300; // answers
  const LONGEST = 65536; // characters of a body whose answer is kept
  const PASSING = /^\/api\/(diagnose|plan|preset)\b/; // what is not kept
  const PATIENCE = 400; // milliseconds before the page says that it loads

  const site = new URL("./", document.currentScript.src);
  const plain = window.fetch.bind(window);
  const waiting = []; // requests in the order in which they are answered
  let under = null; // the one that is calculated
  let calculator = null;
  let ready = false;
  let broken = ""; // why nothing can be calculated

  window.fetch = (input, options = {}) => {
    if (typeof input !== "string" || !input.startsWith("/")) return plain(input, options);
    const [path] = input.split("?");
    if (FACTS.includes(path)) return plain(new URL(`facts/${path.split("/").pop()}.json`, site), options);
    if (path.startsWith("/api/")) return answered(input, options);
    return plain(new URL(`.${input}`, site), options);
  };

  async function answered(address, { method = "GET", body = "", signal }) {
    signal?.throwIfAborted();
    const name = await nameOf(address, body);
    const known = name && (await (await caches.open(VERSION)).match(name));
    return known ?? calculated(address, method, body, signal, name);
  }

  /* The address under which an answer is kept; none where it is not, or where nothing can be. */
  async function nameOf(address, body) {
    if (!self.caches || typeof body !== "string" || body.length > LONGEST || PASSING.test(address)) return null;
    const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${address}\n${body}`));
    return new URL(`answers/${[...new Uint8Array(hash)].map((one) => one.toString(16).padStart(2, "0")).join("")}`, site);
  }

  async function keep(name, response) {
    const answers = await caches.open(VERSION);
    await answers.put(name, response);
    const names = await answers.keys();
    for (const old of names.slice(0, -KEPT)) await answers.delete(old);
  }

  function calculated(address, method, body, signal, name) {
    begin();
    return new Promise((resolve, reject) => {
      const one = { address, method, body, name, resolve };
      signal?.addEventListener("abort", () => {
        const place = waiting.indexOf(one);
        if (place >= 0) waiting.splice(place, 1);
        reject(signal.reason);
      });
      waiting.push(one);
      next();
    });
  }

  async function next() {
    if (broken) return waiting.splice(0).forEach((one) => one.resolve(refusal(broken)));
    if (!ready || under || !waiting.length) return;
    under = waiting.shift();
    const body = under.body instanceof Blob ? new Uint8Array(await under.body.arrayBuffer()) : new TextEncoder().encode(under.body);
    calculator.postMessage({ method: under.method, address: under.address, body });
  }

  function begin() {
    if (calculator) return;
    calculator = new Worker(new URL("calculator.js", site), { type: "module" });
    calculator.onmessage = ({ data }) => (data.reply ? done(data.reply) : data.failed ? failed(data.failed) : started());
    calculator.onerror = (event) => failed(event.message || "a file is missing");
    setTimeout(() => tell(), PATIENCE);
  }

  function done({ status, body, media, filename }) {
    const headers = { "content-type": media, ...(filename ? { "content-disposition": `attachment; filename="${filename}"` } : {}) };
    const { name, resolve } = under;
    const response = new Response(body, { status, headers });
    if (name && status === 200) keep(name, response.clone()).catch(() => {}); // a full disk only makes it slower
    under = null;
    resolve(response);
    next();
  }

  function started() {
    ready = true;
    tell();
    next();
    navigator.serviceWorker?.register(new URL("offline.js", site)).catch(() => {}); // then it needs the network
  }

  function failed(reason) {
    broken = `The calculator does not run in this browser: ${reason}. Load the page again; if that does not help, gpu-mem-calc serve does.`;
    tell();
    if (under) waiting.unshift(under);
    under = null;
    next();
  }

  const refusal = (sentence) =>
    new Response(JSON.stringify({ detail: sentence, problems: [sentence] }), { status: 500, headers: { "content-type": "application/json" } });

  /* A line below the page's head while the calculator is loaded, or why it was not. */
  function tell() {
    let line = document.getElementById("loading");
    const text = broken || (ready ? "" : `Loading the calculator: ${MEGABYTES} MB the first time, then it works offline.`);
    if (!text) return line?.remove();
    if (!line) {
      line = Object.assign(document.createElement("p"), { id: "loading", className: "soft" });
      line.setAttribute("role", "status");
      line.style.padding = "0 1.5rem";
      document.querySelector("header.site")?.after(line);
    }
    line.textContent = text;
  }

  // A picture that is an image's address is asked for by offline.js, which has no calculator.
  navigator.serviceWorker?.addEventListener("message", async ({ data, ports: [port] }) => {
    const answer = await window.fetch(data);
    port.postMessage({ status: answer.status, media: answer.headers.get("content-type"), body: await answer.text() });
  });

  if ("calculates" in document.currentScript.dataset) begin();
})();
