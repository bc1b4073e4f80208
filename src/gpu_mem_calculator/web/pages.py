"""The pages, their styles and scripts: files of this package and of the report."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from .. import report

STATIC = Path(__file__).parent / "static"
REPORT = Path(report.__path__[0])
PAGES = {
    "/": "index.html",
    "/plan": "plan.html",
    "/accuracy": "accuracy.html",
    "/docs": "docs.html",
}
# The pages use the report's styles, and its script of plans.
STYLES = {
    "/static/css/tokens.css": "tokens.css",
    "/static/css/report.css": "page.css",
    "/static/css/plans.css": "plans.css",
    "/static/js/plans.js": "plans.js",
}
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
