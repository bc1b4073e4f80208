"""The web service: `uvicorn gpu_mem_calculator.web.app:app`, or this module, or `serve`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from ..core.errors import InputError
from .observability import RequestObserver, leave, start_logs
from .pages import add_pages
from .pool import ProcessLane
from .reply_cache import ReplyCache
from .routes import QUICK, SLOW, add_routes, gather_facts
from .settings import ServiceSettings, from_environment
from .worker_messages import JSON, refusal

ABOUT = "How much GPU memory a large language model takes to train or serve, exactly and explained."


def create_app(settings: ServiceSettings | None = None) -> FastAPI:
    """The service with its settings; those of the environment where none are given."""
    settings = settings or from_environment()
    start_logs(settings.log_level)
    app = FastAPI(title="gpu-mem-calculator", version=__version__, description=ABOUT,
                  lifespan=_running, docs_url=None, redoc_url=None)  # fmt: skip
    app.state.settings = settings
    app.state.known = ReplyCache(settings.known_bytes)
    app.state.lanes = {
        QUICK: ProcessLane(QUICK, settings.quick_processes, seconds=settings.quick_seconds,
                    waiting=settings.waiting),
        SLOW: ProcessLane(SLOW, settings.slow_processes, seconds=settings.slow_seconds,
                   waiting=settings.waiting, long=True),
    }  # fmt: skip
    names = add_routes(app)
    add_pages(app)
    app.add_exception_handler(HTTPException, _refused)  # type: ignore[arg-type]
    app.add_middleware(RequestObserver, names=names)
    return app


@asynccontextmanager
async def _running(app: FastAPI) -> AsyncIterator[None]:
    """The calculating processes live as long as the service."""
    lanes = app.state.lanes.values()
    try:
        await asyncio.gather(asyncio.to_thread(gather_facts), *(lane.start() for lane in lanes))
        yield
    finally:
        await asyncio.gather(*(lane.stop() for lane in lanes))
        leave()


async def _refused(request: Request, error: HTTPException) -> Response:
    """An address that is not there, or another method than it has."""
    said = {404: f"there is no {request.url.path[:200]}; see /docs",
            405: f"{request.url.path[:200]} does not take {request.method}; see /docs"}  # fmt: skip
    made = refusal(error.status_code, [said.get(error.status_code, str(error.detail))])
    return Response(made.body, made.status, error.headers, media_type=JSON)


def main() -> int:
    """Run it with the environment's settings."""
    from .run import run

    try:
        run(from_environment())
    except InputError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 2
    return 0


def __getattr__(name: str) -> FastAPI:
    """`app` is made when a server asks for it, not when something else is imported from here."""
    if name != "app":
        raise AttributeError(name)
    made = globals()["app"] = create_app()
    return made


if __name__ == "__main__":
    raise SystemExit(main())
