"""The pages, their styles and scripts: files of this package and of the report."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from .. import report

STATIC = Path(__file__).parent / "static"
REPORT = Path(report.__path__[0])
PAGES = {"/": "index.html", "/accuracy": "accuracy.html", "/docs": "docs.html"}
# The page uses the report's styles.
STYLES = {"/static/css/tokens.css": "tokens.css", "/static/css/report.css": "page.css"}
FRESH = {
    "cache-control": "no-cache"
}  # a browser asks each time, and gets the file only when it changed


class StaticPages(StaticFiles):
    """Static files that a browser revalidates each time."""

    def file_response(self, *args: object, **rest: object) -> Response:
        """Starlette's response with the `FRESH` header."""
        response = super().file_response(*args, **rest)  # type: ignore[arg-type]
        response.headers.update(FRESH)
        return response


def add_pages(app: FastAPI) -> None:
    """Add the routes of the pages, their styles and scripts."""
    for path, name in PAGES.items():
        _add_file(app, path, STATIC / name)
    for path, name in STYLES.items():
        _add_file(app, path, REPORT / name)
    app.mount("/static", StaticPages(directory=STATIC), name="static")


def _add_file(app: FastAPI, path: str, file: Path) -> None:
    async def endpoint(_request: Request) -> Response:
        return FileResponse(file, headers=FRESH)

    app.add_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
