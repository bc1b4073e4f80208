"""A text from an address: downloaded once, whole or not at all, from a server of the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import dataset as module
from dataset import cached, load_text

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """A server on the loopback that answers as a test says, and counts."""

    daemon_threads = True
    answer: Answer
    asked = 0

    @property
    def address(self) -> str:
        """Of a text."""
        return f"http://127.0.0.1:{self.server_port}/text"


class Handler(BaseHTTPRequestHandler):
    """One answer."""

    server: Server

    def do_GET(self) -> None:
        """Count, and answer."""
        self.server.asked += 1
        self.server.answer(self)

    def log_message(self, *words: Any) -> None:
        """Nothing."""


def send(body: bytes, *, announced: int | None = None, status: int = 200) -> Answer:
    """An answer with this body, and a length that may be another."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if announced is None else announced))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def drip(handler: BaseHTTPRequestHandler) -> None:
    """An answer that never ends, a little at a time."""
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b"drop ")
            handler.wfile.flush()
            time.sleep(0.01)
    except OSError:  # the other side has had enough
        handler.close_connection = True


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_an_address_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    """The second time the kept file is read, even with the server's text changed."""
    server.answer = send("Größe\n".encode() * 40)
    assert load_text(server.address) == "Größe\n" * 40
    server.answer = send(b"another")
    assert load_text(server.address) == "Größe\n" * 40
    assert server.asked == 1
    assert list((tmp_path / "gptlite").iterdir()) == [cached(server.address)]
    assert load_text(server.address + "2") == "another"


@pytest.mark.parametrize(
    ("answer", "limits", "says"),
    [
        (send(b"gone", status=404), {}, "Not Found"),
        (send(b"half a te", announced=100), {}, "it broke off after 9 of 100 bytes"),
        (send(b"x" * 5000), {"bytes": 4999}, "it is larger than 4,999 bytes"),
        (drip, {"seconds": 0.05, "chunk": 5}, r"it took longer than 0\.05 s"),
        (lambda handler: time.sleep(0.5), {"silence": 0.1}, "timed out"),
        (lambda handler: handler.wfile.write(b"SMTP\r\n\r\n"), {}, "cannot be had"),
        (send(b"f\xfcr"), {}, "is not UTF-8 text"),
        (send(b""), {}, "is empty"),
    ],
    ids=["status", "broken", "large", "slow", "silent", "foreign", "latin", "empty"],
)
def test_a_download_that_fails_leaves_nothing(
    answer: Answer,
    limits: dict[str, float],
    says: str,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence that names the address, an empty folder, and the next try is a new one."""
    monkeypatch.setattr(module, "LIMITS", {**module.LIMITS, **limits})
    server.answer = answer
    with pytest.raises(ValueError, match=says) as caught:
        load_text(server.address)
    assert str(caught.value).startswith(server.address)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "gptlite").iterdir()) == []
    server.answer = send(b"now it is there")
    assert load_text(server.address) == "now it is there"


@pytest.mark.parametrize("address", ["http://", "http://[::1", "http://h:port/", "http://a/ü"])
def test_an_address_that_is_none_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is asked, in the same words."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="download the text and give its path") as caught:
        load_text(address)
    assert str(caught.value).startswith(address)


def test_a_cache_that_cannot_be_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME"):
        load_text(server.address)
