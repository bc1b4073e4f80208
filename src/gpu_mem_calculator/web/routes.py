"""The service's routes: calculations, facts, and what operators ask.

A calculation's body is read within limits, its task is run in a lane, and a calculating process
makes the reply. Facts, which never change, are encoded once.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import cache, partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..ledger.units import KIB
from ..runfile.keys.schema import RUN
from .addresses import CALCULATIONS, QUICK, SLOW, Address
from .facts import FACT, preset_reply
from .guard import refused
from .observability import OUTCOMES, metrics
from .pool import ProcessLane, QueueFullError, TimeLimitError
from .reply_cache import ReplyCache
from .route_document import RouteDocument
from .settings import ServiceSettings
from .worker_messages import BINARY, JSON, TaskReply, TaskRequest, refusal

MOST_OPTIONS, MOST_QUERY_BYTES = 200, 64 * KIB
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a picture carries its own styles
RETRY_SECONDS = 2
BUSY = f"the service is busy with other requests; try again in {RETRY_SECONDS} seconds"
LATE = "this run takes longer than {:g} seconds, the limit of this service; try a smaller run"
PLAN = "plan"  # the task that may take longer than its lane's others
GONE = 499  # the client has disconnected; only the log shows this status


class BodyTooLargeError(Exception):
    """The body has more bytes than `ServiceSettings.body_bytes`."""


async def answer_request(
    request: Request, task: str, lane: str, *, binary: bool = False, **more: str
) -> Response:
    """The response of a calculating process, or a remembered one; `more` are words of the path.

    binary: the body may be a file, which may be larger
    """
    state = request.app.state
    settings: ServiceSettings = state.settings
    is_file = binary and request.headers.get("content-type") == BINARY
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
    options = {**dict(request.query_params.items()), **more}
    if len(options) > MOST_OPTIONS or len(request.scope["query_string"]) > MOST_QUERY_BYTES:
        return _refused(414, "the address is too long; send the run as a body")
    packs = "gzip" in request.headers.get("accept-encoding", "")
    key = (task, body, (*options.items(), ("gzip", str(packs))))
    replies: ReplyCache = state.reply_cache
    reply = replies.get(key)
    if reply is not None:
        OUTCOMES.labels(lane, "remembered").inc()
        return _response(reply)
    ask = TaskRequest(task, body, options, packs)
    limit = settings.plan_seconds if task == PLAN else state.lanes[lane].seconds
    return await _run_task(request, state.lanes[lane], ask, replies, key, limit)


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
    seconds: float,
) -> Response:
    """The task's response, or the refusal that says why there is none; counts the outcome."""
    outcome = "answered"
    try:
        client = request.client.host if request.client else ""
        reply = await _run_while_connected(request, lane.run(ask, client, seconds))
        if reply.status == 200:
            replies.keep(key, reply)
        else:
            outcome = "refused"
        return _response(reply)
    except QueueFullError:
        outcome = "busy"
        return _refused(503, BUSY, {"retry-after": str(RETRY_SECONDS)})
    except TimeLimitError:
        outcome = "late"
        return _refused(504, LATE.format(seconds))
    except ClientDisconnect:
        outcome = "left"
        return Response(status_code=GONE)
    finally:
        OUTCOMES.labels(lane.name, outcome).inc()


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


def _refused(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return _response(refusal(status, [sentence]), headers)


def _response(reply: TaskReply, headers: dict[str, str] | None = None) -> Response:
    more: dict[str, Any] = dict(headers or {})
    if reply.packed:
        more |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    if reply.filename:
        more["content-disposition"] = f'attachment; filename="{reply.filename}"'
    if reply.media.startswith("image/svg"):
        more["content-security-policy"] = SVG_POLICY
    if reply.fault:
        more["x-fault-id"] = reply.fault
    if reply.media == JSON:
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
        words = request.path_params
        return await answer_request(request, route.task, lane, binary=route.binary, **words)

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
