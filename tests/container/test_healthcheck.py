"""The container's healthcheck: whom it asks, and what it makes of the answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from healthcheck import answers, asked

from tests.services import free_port

PROGRAM = ["/usr/bin/python3.13", "/usr/bin/gpu-mem-calc"]


@pytest.mark.parametrize(
    ("words", "environment", "place"),
    [
        (["serve"], {}, ("127.0.0.1", 8000)),
        (["serve", "--host", "0.0.0.0", "--port", "9000"], {}, ("127.0.0.1", 9000)),
        (["serve", "--port=9000", "--host=::"], {}, ("::1", 9000)),
        (["serve"], {"GPU_MEM_CALC_PORT": "81", "GPU_MEM_CALC_HOST": "10.0.0.1"}, ("10.0.0.1", 81)),
        (["serve", "--port", "82"], {"GPU_MEM_CALC_PORT": "81"}, ("127.0.0.1", 82)),
        (["quick", "7"], {"GPU_MEM_CALC_PORT": "81"}, None),
        (["--help"], {}, None),
    ],
)
def test_it_asks_where_the_service_listens(
    words: list[str], environment: dict[str, str], place: tuple[str, int] | None
) -> None:
    """Options win over the environment; another command is not asked."""
    assert asked([*PROGRAM, *words, ""], environment) == place


class Answer(BaseHTTPRequestHandler):
    """Says 200 to /healthz of a healthy service, else 503."""

    healthy = True

    def do_GET(self) -> None:
        """One status, no body."""
        self.send_response(200 if self.healthy and self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """A service's port."""
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_service_that_answers_is_healthy(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that answers otherwise is not."""
    assert answers("127.0.0.1", port)
    monkeypatch.setattr(Answer, "healthy", False)
    assert not answers("127.0.0.1", port)


def test_a_service_that_is_gone_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is printed, without a traceback."""
    assert not answers("127.0.0.1", free_port())
    assert "refused" in capsys.readouterr().out
