"""The pages and what they are made of: files of this package, and the report's own styles."""

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
# The report's styles are the page's, too.
STYLES = {"/static/css/tokens.css": "tokens.css", "/static/css/report.css": "page.css"}
FRESH = {"cache-control": "no-cache"}  # asked again each time, sent again only when changed


class StaticPages(StaticFiles):
    """Files that a browser asks for again after an update."""

    def file_response(self, *args: object, **rest: object) -> Response:
        """As Starlette does, with that header."""
        made = super().file_response(*args, **rest)  # type: ignore[arg-type]
        made.headers.update(FRESH)
        return made


def add_pages(app: FastAPI) -> None:
    """The pages, their styles and scripts."""
    for path, name in PAGES.items():
        _add_file(app, path, STATIC / name)
    for path, name in STYLES.items():
        _add_file(app, path, REPORT / name)
    app.mount("/static", StaticPages(directory=STATIC), name="static")


def _add_file(app: FastAPI, path: str, file: Path) -> None:
    async def sent(_request: Request) -> Response:
        return FileResponse(file, headers=FRESH)

    app.add_route(path, sent, methods=["GET", "HEAD"], include_in_schema=False)
