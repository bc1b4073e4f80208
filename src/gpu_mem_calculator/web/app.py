"""The web service: `uvicorn gpu_mem_calculator.web.app:app`, or this module, or `serve`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from ..runfile.text.errors import InputError
from .addresses import QUICK, SLOW
from .guard import RequestGuard
from .logs import start_logs
from .observability import RequestObserver, drop_gauges
from .pages import missing_page, page_routes
from .pool import ProcessLane
from .reply_cache import ReplyCache
from .routes import gather_facts, named_routes
from .settings import ServiceSettings, from_environment
from .worker_messages import JSON, refusal


def create_app(settings: ServiceSettings | None = None) -> Starlette:
    """The application; without `settings`, those of the environment apply."""
    settings = settings or from_environment()
    start_logs(settings.log_level)
    routes, names = named_routes()
    app = Starlette(
        routes=[*routes, *page_routes()],
        middleware=[
            Middleware(RequestObserver, names=names),
            Middleware(RequestGuard, settings=settings),
        ],
        exception_handlers={HTTPException: _http_error},
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False  # its redirects repeat the host that the client named
    app.state.settings = settings
    app.state.reply_cache = ReplyCache(settings.known_bytes)
    app.state.lanes = {
        QUICK: ProcessLane(
            QUICK,
            settings.quick_processes,
            seconds=settings.quick_seconds,
            waiting=settings.waiting,
        ),
        SLOW: ProcessLane(
            SLOW,
            settings.slow_processes,
            seconds=settings.slow_seconds,
            waiting=settings.waiting,
            share=max(1, settings.slow_processes - 1),  # one is left for other clients
        ),
    }
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """Start the calculating processes with the service, and stop them with it."""
    lanes = app.state.lanes.values()
    try:
        await asyncio.gather(asyncio.to_thread(gather_facts), *(lane.start() for lane in lanes))
        yield
    finally:
        await asyncio.gather(*(lane.stop() for lane in lanes))
        drop_gauges()


async def _http_error(request: Request, error: Exception) -> Response:
    """The reply to an unknown address (404) or a method it does not take (405): JSON, or a page
    for a browser.
    """
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    people = "text/html" in request.headers.get("accept", "") and not path.startswith("/api/")
    if error.status_code == 404 and people:
        return missing_page()
    sentences = {
        404: f"there is no {path}; see /docs",
        405: f"{path} does not take {request.method}; see /docs",
    }
    sentence = sentences.get(error.status_code, str(error.detail))
    reply = refusal(error.status_code, [sentence])
    return Response(reply.body, reply.status, error.headers, media_type=JSON)


def main() -> int:
    """Run the service with the environment's settings; 2 for a setting that is wrong."""
    from .run import run

    try:
        run(from_environment())
    except InputError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 2
    return 0


def __getattr__(name: str) -> Starlette:
    """Create `app` when a server imports it, not when another name is imported."""
    if name != "app":
        raise AttributeError(name)
    app = globals()["app"] = create_app()
    return app


if __name__ == "__main__":
    raise SystemExit(main())
