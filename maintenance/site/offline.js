/* Keeps every file of the page, so that it opens without a network; a new build replaces it whole
   once no page of the old one is open. */

const VERSION = "@version@";
const FILES = @files@;
const OURS = /^gpu-mem-calc /; // the names of caches

async function keepFile(cache, name) {
  const file = await fetch(name);
  if (!file.ok) throw new Error(`${name}: ${file.status}`);
  const headers = { "content-type": file.headers.get("content-type") ?? "" };
  await cache.put(name, new Response(file.body, { headers })); // without a redirect, which no page may have
}

async function install() {
  const cache = await caches.open(`${VERSION} files`);
  await Promise.all(FILES.map((name) => keepFile(cache, name)));
}

async function activate() {
  const old = (await caches.keys()).filter((name) => OURS.test(name) && !name.startsWith(VERSION));
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function kept(request) {
  const cache = await caches.open(`${VERSION} files`);
  return (await cache.match(request, { ignoreSearch: true })) ?? fetch(request);
}

/* A picture, which the page that wants it calculates itself. */
async function asked(event) {
  const { pathname, search } = new URL(event.request.url);
  const page = await self.clients.get(event.clientId);
  const { port1, port2 } = new MessageChannel();
  const answer = new Promise((resolve) => (port1.onmessage = ({ data }) => resolve(data)));
  page.postMessage(pathname + search, [port2]);
  const { status, media, body } = await answer;
  return new Response(body, { status, headers: { "content-type": media } });
}

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { request, clientId } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin) return;
  if (clientId && pathname.startsWith("/api/")) event.respondWith(asked(event));
  else if (request.url.startsWith(self.registration.scope)) event.respondWith(kept(request));
});
