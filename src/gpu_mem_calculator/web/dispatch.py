"""From a request to its reply: read the body within limits, run the task in a lane, respond."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..ledger.units import KIB
from .observability import OUTCOMES
from .pool import ProcessLane, QueueFullError, TimeLimitError
from .reply_cache import ReplyCache
from .settings import ServiceSettings
from .worker_messages import JSON, TaskReply, TaskRequest, refusal

MOST_OPTIONS, MOST_QUERY_BYTES = 200, 64 * KIB
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a picture carries its own styles
RETRY_SECONDS = 2
BUSY = f"the service is busy with other requests; try again in {RETRY_SECONDS} seconds"
LATE = "this run takes longer than {:g} seconds, the limit of this service; try a smaller run"
PLAN = "plan"  # the task that may take longer than its lane's others
GONE = 499  # the client has disconnected; only the log shows this status


class BodyTooLargeError(Exception):
    """The body has more bytes than `ServiceSettings.body_bytes`."""


async def answer_request(request: Request, task: str, lane: str, **more: str) -> Response:
    """The response of a calculating process, or a remembered one; `more` are words of the path."""
    state = request.app.state
    settings: ServiceSettings = state.settings
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _read_body(request, settings.body_bytes)
    except BodyTooLargeError:
        return _refused(413, f"the body is larger than {settings.body_bytes:,} bytes")
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
