"""The page as plain files, built once, and a plain server of files for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright

from maintenance.site import __main__ as builder
from maintenance.site.packages import MissingError
from tests.browser.chrome import launched

SUB_FOLDER = "some/where"
WAIT = 120_000  # milliseconds that Python may take to start on a machine that is busy
PACKAGES = Path(sys.prefix) / "pyodide"


class Files(SimpleHTTPRequestHandler):
    """Files of a folder; every byte is counted."""

    sent = 0

    def copyfile(self, source: Any, outputfile: BinaryIO) -> None:
        """Send a file."""
        content = source.read()
        Files.sent += len(content)
        outputfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="package")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a server shows, with the page in a sub-folder."""
    if not list(PACKAGES.glob("*.tgz")) or not list(PACKAGES.glob("*.whl")):
        pytest.skip(f"no Pyodide in {PACKAGES}; `make test` fetches it")
    root = tmp_path_factory.mktemp("site")
    try:
        builder.build(root / SUB_FOLDER, PACKAGES)
    except MissingError as reason:
        pytest.skip(str(reason))
    return root


@pytest.fixture
def server(built: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of files that knows nothing of the page."""
    Files.sent = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=built)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def site(server: ThreadingHTTPServer) -> str:
    """The page's address."""
    return f"http://127.0.0.1:{server.server_port}/{SUB_FOLDER}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser for the folder's tests."""
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        try:
            made = launched(playwright)
        except Error as error:
            pytest.skip(f"no browser on this machine; `make test` installs one: {error.message}")
        yield made
        made.close()
