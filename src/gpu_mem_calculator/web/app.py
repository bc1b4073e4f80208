"""The web service: `uvicorn gpu_mem_calculator.web.app:app`, or this module, or `serve`.

Its pages, styles and scripts are files of this package and of the report.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from .. import report
from ..runfile.text.errors import InputError
from ..tools.translation.arguments import tables
from .addresses import PLAN, QUICK, SLOW
from .guard import RequestGuard, refused
from .logs import start_logs
from .observability import RequestObserver, drop_gauges
from .pool import ProcessLane
from .reply_cache import ReplyCache
from .routes import gather_facts, named_routes
from .settings import ServiceSettings, from_environment
from .worker_messages import GENTLE

STATIC = Path(__file__).parent / "static"
REPORT = Path(report.__path__[0])
# Files by address. The pages use the report's styles, and its script of plans.
_FILES = tables(__file__)
PAGES, STYLES = _FILES["pages"], _FILES["styles"]
# A browser asks each time, and gets the file only when it changed.
FRESH = {"cache-control": "no-cache"}


class StaticPages(StaticFiles):
    """Static files that a browser revalidates each time."""

    def file_response(self, *args: object, **rest: object) -> Response:
        """Starlette's response with the `FRESH` header."""
        response = super().file_response(*args, **rest)  # type: ignore[arg-type]
        response.headers.update(FRESH)
        return response


def page_routes() -> list[BaseRoute]:
    """The routes of the pages, their styles and scripts."""
    pages = [_file(path, STATIC / name) for path, name in PAGES.items()]
    slashes = [_redirect(f"{path}/", path) for path in PAGES if path != "/"]
    styles = [_file(path, REPORT / name) for path, name in STYLES.items()]
    return [*pages, *slashes, *styles, Mount("/static", StaticPages(directory=STATIC))]


def missing_page() -> Response:
    """The page for an address that is not there."""
    return FileResponse(STATIC / "missing.html", 404, headers=FRESH)


def _redirect(path: str, to: str) -> Route:
    async def endpoint(_request: Request) -> Response:
        return RedirectResponse(to)

    return Route(path, endpoint, methods=["GET"])


def _file(path: str, file: Path) -> Route:
    async def endpoint(_request: Request) -> Response:
        return FileResponse(file, headers=FRESH)

    return Route(path, endpoint, methods=["GET"])


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
    app.state.lanes = lanes(settings)
    return app


def lanes(settings: ServiceSettings) -> dict[str, ProcessLane]:
    """The lanes of calculating processes, by name."""
    waiting, few, slow = settings.waiting, settings.quick_processes, settings.slow_processes
    many = settings.plan_processes
    share, plans = (max(1, size - 1) for size in (slow, many))  # one is left for other clients
    return {
        QUICK: ProcessLane(QUICK, few, seconds=settings.quick_seconds, waiting=waiting),
        SLOW: ProcessLane(SLOW, slow, seconds=settings.slow_seconds, waiting=waiting, share=share),
        PLAN: ProcessLane(
            PLAN, many, seconds=settings.plan_seconds, waiting=waiting, share=plans, words=(GENTLE,)
        ),
    }


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
    return refused(error.status_code, sentence, error.headers)


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
