/* Python in a worker: it loads Pyodide and the package, then answers one request after another. */

import { loadPyodide } from "./pyodide/pyodide.js";

const here = new URL("./", import.meta.url);
const plain = self.fetch.bind(self);
const BLOCK = 512; // bytes of a block of a tar file

/* A gzipped file; a host may have unpacked it on the way. */
async function unpacked(address, media) {
  const file = await plain(address);
  if (!file.ok) throw new Error(`${address} is not there`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const stream = new Blob([bytes]).stream();
  const gzipped = bytes[0] === 0x1f && bytes[1] === 0x8b;
  return new Response(gzipped ? stream.pipeThrough(new DecompressionStream("gzip")) : stream, { headers: { "content-type": media } });
}

// Pyodide asks for its program by this name; it lies here gzipped, whatever the host does.
self.fetch = (address, options) =>
  String(address).endsWith(".wasm") ? unpacked(`${address}.gz`, "application/wasm") : plain(address, options);

/* Write the files of a tar archive. */
function writeFiles(files, archive, folder) {
  const text = new TextDecoder();
  const field = (at, from, length) => text.decode(archive.subarray(at + from, at + from + length)).split("\0")[0];
  const made = new Set();
  for (let at = 0; archive[at]; ) {
    const size = parseInt(field(at, 124, 12), 8);
    const path = [folder, field(at, 345, 155), field(at, 0, 100)].filter(Boolean).join("/");
    const parent = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(parent)) files.mkdirTree(parent);
    made.add(parent);
    files.writeFile(path, archive.subarray(at + BLOCK, at + BLOCK + size));
    at += BLOCK * (1 + Math.ceil(size / BLOCK));
  }
}

async function start() {
  const packed = unpacked(new URL("calculator.tar.gz", here)).then((file) => file.arrayBuffer());
  packed.catch(() => {}); // reported where it is waited for
  const python = await loadPyodide({
    indexURL: new URL("pyodide/", here).href,
    stdLibURL: new URL("pyodide/stdlib.zip", here).href,
  });
  writeFiles(python.FS, new Uint8Array(await packed), "/calculator");
  return python.runPython(`
import gc, sys
sys.path.append("/calculator")
sys.dont_write_bytecode = True
from gpu_mem_calculator.web import in_browser
in_browser.start()
gc.freeze()
lambda method, address, body: in_browser.reply(method, address, body.to_bytes())
`);
}

const fail = (error) => self.postMessage({ failed: String(error.message ?? error).trim().split("\n").pop() });
const started = start();
started.then(() => self.postMessage({}), fail);

self.onmessage = async ({ data: { method, address, body } }) => {
  const answer = await started;
  try {
    const reply = answer(method, address, body);
    const content = reply.body.toJs();
    self.postMessage({ reply: { status: reply.status, body: content, media: reply.media, filename: reply.filename } });
    reply.destroy();
  } catch (error) {
    fail(error); // replies have the errors of requests: this is Python's end
  }
};
