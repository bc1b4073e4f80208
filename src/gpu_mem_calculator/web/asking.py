"""From a request to its answer: read its body within bounds, ask a lane, send what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .frames import JSON, Ask, Reply, refusal
from .known import Known
from .observe import OUTCOMES, READY, WAITING
from .pool import BusyError, Lane, LateError
from .settings import Settings

MOST_OPTIONS, MOST_TEXT = 200, 64 * 2**10  # of an address
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a picture carries its own styles
BUSY = "the service is busy; try again in a second"
LATE = "this takes longer than {:g} seconds, the limit here; try a smaller run"
GONE = 499  # the client has left; nobody sees it but the log


class TooLargeError(Exception):
    """The body is larger than the service takes."""


async def asked(request: Request, task: str, lane: str, **more: str) -> Response:
    """The answer to a request by a calculating process."""
    state = request.app.state
    settings: Settings = state.settings
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _body(request, settings.body_bytes)
    except TooLargeError:
        return _sent(refusal(413, [f"the body is larger than {settings.body_bytes:,} bytes"]))
    except TimeoutError:
        return _sent(refusal(408, [f"the body took longer than {settings.body_seconds:g} seconds"]))
    except ClientDisconnect:
        return Response(status_code=GONE)
    options = {**dict(request.query_params.items()), **more}
    if len(options) > MOST_OPTIONS or len(request.url.query) > MOST_TEXT:
        return _sent(refusal(414, ["the address is too long; send the run as a body"]))
    key = (task, body, tuple(options.items()))
    known: Known = state.known
    reply = known.get(key)
    if reply is not None:
        OUTCOMES.labels(lane, "remembered").inc()
        return _sent(reply)
    return await _answered(request, state.lanes[lane], Ask(task, body, options), known, key)


async def _body(request: Request, most: int) -> bytes:
    """The body, as long as it stays within bounds."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:18]) > most:
        raise TooLargeError
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > most:
            raise TooLargeError
        parts.append(part)
    return b"".join(parts)


async def _answered(request: Request, lane: Lane, ask: Ask, known: Known, key: object) -> Response:
    """Whichever comes first: the answer, the time limit, or the client leaving."""
    work = asyncio.ensure_future(lane.run(ask))
    gone = asyncio.ensure_future(_gone(request))
    WAITING.labels(lane.name).set(lane.waiting)
    READY.labels(lane.name).set(lane.ready)
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            OUTCOMES.labels(lane.name, "left").inc()
            return Response(status_code=GONE)
        reply = work.result()
    except BusyError:
        OUTCOMES.labels(lane.name, "busy").inc()
        return _sent(
            refusal(503, ["the service is busy; try again in a second"]), {"retry-after": "1"}
        )
    except LateError:
        OUTCOMES.labels(lane.name, "late").inc()
        sentence = (
            f"this takes longer than {lane.seconds:g} seconds, the limit here; try a smaller run"
        )
        return _sent(refusal(504, [sentence]))
    finally:
        work.cancel()
        gone.cancel()
    if reply.status == 200:
        known.keep(key, reply)
    OUTCOMES.labels(lane.name, "answered" if reply.status == 200 else "refused").inc()
    return _sent(reply)


async def _gone(request: Request) -> None:
    """Ends when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sent(reply: Reply, headers: dict[str, str] | None = None) -> Response:
    more: dict[str, Any] = dict(headers or {})
    if reply.filename:
        more["content-disposition"] = f'attachment; filename="{reply.filename}"'
    if reply.media.startswith("image/svg"):
        more["content-security-policy"] = SVG_POLICY
    if reply.media == JSON:
        more["cache-control"] = "no-store"
    return Response(reply.body, reply.status, more, media_type=reply.media)
