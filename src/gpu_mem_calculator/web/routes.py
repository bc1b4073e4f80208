"""The service's routes: calculations, facts, and what operators ask.

A calculation's body is read within limits, its task is run in a lane, and a calculating process
makes the reply. A reply may stream: what is refused soon is refused with its status, and later the
last event says why there is no answer. Facts, which never change, are encoded once.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import cache, partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..ledger.units import KIB
from ..runfile.keys.schema import RUN
from .addresses import CALCULATIONS, QUICK, SLOW, Address
from .facts import FACT, preset_reply
from .guard import refused
from .observability import OUTCOMES, metrics
from .pool import ProcessLane, QueueFullError, Tell, TimeLimitError
from .reply_cache import ReplyCache
from .route_document import RouteDocument
from .settings import ServiceSettings
from .worker_messages import BINARY, EVENTS, JSON, TaskReply, TaskRequest, event, late, refusal

MOST_OPTIONS, MOST_QUERY_BYTES = 200, 64 * KIB
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a picture carries its own styles
RETRY_SECONDS = 2
BUSY = f"the service is busy with other requests; try again in {RETRY_SECONDS} seconds"
GONE = 499  # the client has disconnected; only the log shows this status
FIRST_SECONDS = 1.0  # for a refusal to arrive, before the head of the answer is sent
QUIET_SECONDS = 10.0  # without an event, after which a line is sent that says nothing
# A proxy sends each event on, and nobody keeps them.
STREAM_HEAD = {"cache-control": "no-store", "x-accel-buffering": "no"}
WAITING = event("progress", {"text": "waiting for a free process", "part": 0.0, "seconds": 0.0})
HERE = b": still here\n\n"
Work = Callable[..., Coroutine[Any, Any, TaskReply]]
Parts = asyncio.Queue[TaskReply | None]  # None after the last


class BodyTooLargeError(Exception):
    """The body has more bytes than `ServiceSettings.body_bytes`."""


async def answer_request(request: Request, route: Address, lane: str) -> Response:
    """The response of a calculating process, or a remembered one."""
    state = request.app.state
    settings: ServiceSettings = state.settings
    is_file = route.binary and request.headers.get("content-type") == BINARY
    most = settings.snapshot_bytes if is_file else settings.body_bytes
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _read_body(request, most)
    except BodyTooLargeError:
        return _refused(413, f"the body is larger than {most:,} bytes")
    except TimeoutError:
        return _refused(408, f"the body took longer than {settings.body_seconds:g} seconds")
    except ClientDisconnect:
        return Response(status_code=GONE)
    options = {**dict(request.query_params.items()), **request.path_params}
    if len(options) > MOST_OPTIONS or len(request.scope["query_string"]) > MOST_QUERY_BYTES:
        return _refused(414, "the address is too long; send the run as a body")
    packs = "gzip" in request.headers.get("accept-encoding", "")
    streams = bool(route.events) and EVENTS in request.headers.get("accept", "")
    form = EVENTS if streams else "gzip" if packs else ""
    key = (route.task, body, (*options.items(), ("form", form)))
    replies: ReplyCache = state.reply_cache
    reply = replies.get(key)
    if reply is not None:
        OUTCOMES.labels(lane, "remembered").inc()
        return _response(reply)
    at = state.lanes[lane]
    ask = TaskRequest(route.task, body, options, packs, streams, at.seconds)
    work = partial(_run_task, request, at, ask, replies, key, route.later)
    if streams:
        return await streamed(work, _response)
    try:
        return _response(await _run_while_connected(request, work()))
    except ClientDisconnect:
        return Response(status_code=GONE)


async def _read_body(request: Request, most: int) -> bytes:
    """The whole body; raises `BodyTooLargeError` above `most` bytes."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:18]) > most:
        raise BodyTooLargeError
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > most:
            raise BodyTooLargeError
        parts.append(part)
    return b"".join(parts)


async def _run_task(
    request: Request,
    lane: ProcessLane,
    ask: TaskRequest,
    replies: ReplyCache,
    key: object,
    later: bool,
    tell: Tell | None = None,
) -> TaskReply:
    """The task's reply, or the refusal that says why there is none; counts the outcome."""
    outcome = "left"
    try:
        client = request.client.host if request.client else ""
        reply = await lane.run(ask, client, later=later, tell=tell)
        outcome = "answered" if reply.status < 300 else "refused"
        if reply.status == 200:
            replies.keep(key, reply)
        return reply
    except QueueFullError:
        outcome = "busy"
        return refusal(503, [BUSY])
    except TimeLimitError:
        outcome = "late"
        return refusal(504, [late(lane.seconds)])
    finally:
        OUTCOMES.labels(lane.name, outcome).inc()


async def streamed(work: Work, whole: Callable[[TaskReply], Response]) -> Response:
    """The response of a task whose parts are events; `whole` makes that of a refusal."""
    parts: Parts = asyncio.Queue()
    task = asyncio.ensure_future(work(tell=parts.put_nowait))
    task.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        part = await asyncio.wait_for(parts.get(), FIRST_SECONDS)
        first = b"" if part is None else part.body
    except TimeoutError:
        first = WAITING
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not first and task.result().media != EVENTS:
        return whole(task.result())
    return StreamingResponse(_events(task, first, parts), headers=STREAM_HEAD, media_type=EVENTS)


async def _events(
    task: asyncio.Future[TaskReply], first: bytes, parts: Parts
) -> AsyncIterator[bytes]:
    """The events of a task until its last; the task ends with the connection."""
    try:
        yield first
        while not (task.done() and parts.empty()):
            try:
                part = await asyncio.wait_for(parts.get(), QUIET_SECONDS)
            except TimeoutError:
                yield HERE
            else:
                yield b"" if part is None else part.body
        yield _last(task.result())
    finally:
        task.cancel()


def _last(reply: TaskReply) -> bytes:
    """The last event: that of the reply, or its refusal."""
    if reply.media == EVENTS:
        return reply.body
    refused = msgspec.json.decode(reply.body)
    return event("done", {"complete": False, "status": reply.status, **refused})


async def _run_while_connected(request: Request, task: Coroutine[Any, Any, TaskReply]) -> TaskReply:
    """The reply of a task; raises `ClientDisconnect` when the client leaves first."""
    work = asyncio.ensure_future(task)
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refused(status: int, sentence: str) -> Response:
    return _response(refusal(status, [sentence]))


def _response(reply: TaskReply) -> Response:
    more: dict[str, Any] = {"retry-after": str(RETRY_SECONDS)} if reply.status == 503 else {}
    if reply.packed:
        more |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    if reply.filename:
        more["content-disposition"] = f'attachment; filename="{reply.filename}"'
    if reply.media.startswith("image/svg"):
        more["content-security-policy"] = SVG_POLICY
    if reply.fault:
        more["x-fault-id"] = reply.fault
    if reply.media in (JSON, EVENTS):
        more["cache-control"] = "no-store"
    return Response(reply.body, reply.status, more, media_type=reply.media)


Endpoint = Callable[[Request], Awaitable[Response]]
FACTS, WATCH = "catalogue", "operate"


def operations() -> Iterator[tuple[str, str, Endpoint, RouteDocument]]:
    """Every address: path, method, endpoint and document."""
    for route in CALCULATIONS:
        yield route.path, route.method, _calculation(route), route
    for path, (_, answer, summary) in FACT.items():
        about = RouteDocument(summary=summary, tag=FACTS, answer=answer)
        yield path, "GET", _sends_fact(partial(_encode_fact, path)), about
    summary = "One preset as a run file"
    about = RouteDocument(summary=summary, tag=FACTS, words=("name",), answer=RUN)
    yield "/api/preset/{name}", "GET", _preset, about
    for path, endpoint, summary, answer, media in MONITORING:
        about = RouteDocument(summary=summary, tag=WATCH, media=media, answer=answer, fails=(503,))
        yield path, "GET", endpoint, about


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the service."""
    from .openapi import openapi_document, operation  # types of every reply, which no reply needs

    paths: dict[str, dict[str, Any]] = {}
    for path, method, _, about in operations():
        paths.setdefault(path, {})[method.lower()] = operation(about, f"{method} {path}")
    return openapi_document(paths)


def named_routes() -> tuple[list[Route], dict[Endpoint, str]]:
    """The routes of every address and of the OpenAPI document, and the path of each endpoint."""
    rows = [(path, method, endpoint) for path, method, endpoint, _ in operations()]
    document = EncodedFact(msgspec.json.encode(openapi()))
    described = ("/openapi.json", "GET", _sends_fact(lambda: document))
    routes = [Route(path, run, methods=[method]) for path, method, run in (*rows, described)]
    return routes, {endpoint: path for path, _, endpoint in rows}


def _calculation(route: Address) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        query = request.query_params
        if problem := route.refusal([name for name, _ in query.multi_items()]):
            return refused(422, problem)
        replay = query.get("replay", route.defaults.get("replay", ""))
        lane = {"true": SLOW, "false": QUICK}.get(replay, route.lane)
        return await answer_request(request, route, lane)

    return endpoint


class EncodedFact:
    """A fact as it is sent: JSON, the same gzipped, and a tag by which a browser knows it again."""

    def __init__(self, body: bytes) -> None:
        self.body, self.packed = body, gzip.compress(body, mtime=0)
        self.tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    def response(self, request: Request) -> Response:
        """The fact, or 304 where the client has it."""
        headers = {"etag": self.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        packs = "gzip" in request.headers.get("accept-encoding", "")
        if packs:
            headers["content-encoding"] = "gzip"
        return Response(self.packed if packs else self.body, headers=headers, media_type=JSON)


@cache
def _encode_fact(path: str) -> EncodedFact:
    """A fact of the catalogue, encoded once."""
    return EncodedFact(msgspec.json.encode(FACT[path][0]()))


def gather_facts() -> None:
    """Encode every fact before the first request."""
    for path in FACT:
        _encode_fact(path)


def _sends_fact(fact: Callable[[], EncodedFact]) -> Endpoint:
    """An endpoint that sends this fact to everyone."""

    async def endpoint(request: Request) -> Response:
        return fact().response(request)

    return endpoint


async def _healthy(_request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type=JSON)


async def _preset(request: Request) -> Response:
    """A preset as a run file, or 404."""
    return _response(preset_reply(request.path_params["name"]))


async def _ready(request: Request) -> Response:
    """200 where every lane has a process that is ready, else 503."""
    lanes = request.app.state.lanes.values()
    missing = [lane.name for lane in lanes if not lane.ready]
    if missing:
        return refused(503, f"no calculating process is ready in: {', '.join(missing)}")
    return Response(b'{"status":"ready"}', media_type=JSON)


async def _metrics(_request: Request) -> Response:
    return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


MONITORING: Iterable[tuple[str, Endpoint, str, str, str]] = (
    ("/healthz", _healthy, "The service runs", "Status", JSON),
    ("/readyz", _ready, "The service can calculate", "Status", JSON),
    ("/metrics", _metrics, "Prometheus metrics", "string", "text/plain"),
)
