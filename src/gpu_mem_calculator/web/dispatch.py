"""From a request to its answer: read its body within bounds, ask a lane, send what comes back."""

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

MOST_OPTIONS, MOST_TEXT = 200, 64 * KIB  # of an address
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a picture carries its own styles
BUSY = "the service is busy; try again in a second"
LATE = "this takes longer than {:g} seconds, the limit here; try a smaller run"
GONE = 499  # the client has left; nobody sees it but the log


class BodyTooLargeError(Exception):
    """The body is larger than the service takes."""


async def asked(request: Request, task: str, lane: str, **more: str) -> Response:
    """The answer to a request by a calculating process."""
    state = request.app.state
    settings: ServiceSettings = state.settings
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _body(request, settings.body_bytes)
    except BodyTooLargeError:
        return _sent(refusal(413, [f"the body is larger than {settings.body_bytes:,} bytes"]))
    except TimeoutError:
        return _sent(refusal(408, [f"the body took longer than {settings.body_seconds:g} seconds"]))
    except ClientDisconnect:
        return Response(status_code=GONE)
    options = {**dict(request.query_params.items()), **more}
    if len(options) > MOST_OPTIONS or len(request.scope["query_string"]) > MOST_TEXT:
        return _sent(refusal(414, ["the address is too long; send the run as a body"]))
    packs = "gzip" in request.headers.get("accept-encoding", "")
    key = (task, body, (*options.items(), ("gzip", str(packs))))
    known: ReplyCache = state.known
    reply = known.get(key)
    if reply is not None:
        OUTCOMES.labels(lane, "remembered").inc()
        return _sent(reply)
    return await _answered(
        request, state.lanes[lane], TaskRequest(task, body, options, packs), known, key
    )


async def _body(request: Request, most: int) -> bytes:
    """The body, as long as it stays within bounds."""
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


async def _answered(
    request: Request, lane: ProcessLane, ask: TaskRequest, known: ReplyCache, key: object
) -> Response:
    """The answer, or why there is none."""
    outcome = "answered"
    try:
        reply = await (_watched(request, lane.run(ask)) if lane.long else lane.run(ask))
        if reply.status == 200:
            known.keep(key, reply)
        else:
            outcome = "refused"
        return _sent(reply)
    except QueueFullError:
        outcome = "busy"
        return _sent(refusal(503, [BUSY]), {"retry-after": "1"})
    except TimeLimitError:
        outcome = "late"
        return _sent(refusal(504, [LATE.format(lane.seconds)]))
    except ClientDisconnect:
        outcome = "left"
        return Response(status_code=GONE)
    finally:
        OUTCOMES.labels(lane.name, outcome).inc()


async def _watched(request: Request, asking: Coroutine[Any, Any, TaskReply]) -> TaskReply:
    """An answer that takes long, given up when the client leaves."""
    work, gone = asyncio.ensure_future(asking), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    """Ends when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sent(reply: TaskReply, headers: dict[str, str] | None = None) -> Response:
    more: dict[str, Any] = dict(headers or {})
    if reply.packed:
        more |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    if reply.filename:
        more["content-disposition"] = f'attachment; filename="{reply.filename}"'
    if reply.media.startswith("image/svg"):
        more["content-security-policy"] = SVG_POLICY
    if reply.media == JSON:
        more["cache-control"] = "no-store"
    return Response(reply.body, reply.status, more, media_type=reply.media)
