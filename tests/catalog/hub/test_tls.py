"""A checked connection over TLS: the certificate must be the name's."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.catalog.hub import request
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from tests.catalog.hub.local_hub import TABLE
from tests.catalog.hub.servers import Answers
from tests.catalog.hub.test_checkpoint import CONFIG

NAME = "hub.example"
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate")


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A hub that is hub.example by its certificate; every name leads to it."""
    key, own = str(tmp_path / "key.pem"), str(tmp_path / "own.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words = [*made, "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    subprocess.run([*words, "-keyout", key, "-out", own], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    monkeypatch.setenv("SSL_CERT_FILE", own)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    request._context.cache_clear()
    real = socket.getaddrinfo

    def here(host: str, *args: Any, **rest: Any) -> Any:
        return real("127.0.0.1", *args, **rest)

    with HTTPServer(("127.0.0.1", 0), partial(Answers, TABLE, [])) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(socket, "getaddrinfo", here)
        yield server.server_port
        server.shutdown()
    request._context.cache_clear()


def test_the_certificate_is_that_of_the_name(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is the one that was judged, the name still the one that was asked for."""
    monkeypatch.setenv("HF_ENDPOINT", f"https://{NAME}:{port}")
    allow(Access(files=False, hosts=frozenset({NAME, "other.example"})))
    assert hub_checkpoint("owner/tiny").config == CONFIG
    monkeypatch.setenv("HF_ENDPOINT", f"https://other.example:{port}")
    with pytest.raises(HubError, match=r"^owner/tiny/config.json: cannot be reached$"):
        hub_checkpoint("owner/tiny")


def test_a_command_line_does_not_follow_a_redirect_to_plain_http(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does a service."""
    monkeypatch.setenv("HF_ENDPOINT", f"https://{NAME}:{port}")
    monkeypatch.setitem(TABLE, "/config.json", f"http://{NAME}/config.json")
    with pytest.raises(HubError, match="redirected from https to plain http; https is read"):
        hub_checkpoint("owner/tiny")


def test_plain_http_is_not_read_where_the_hub_is_https(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Being sent on does not take the encryption off."""
    monkeypatch.setenv("HF_ENDPOINT", f"https://{NAME}:{port}")
    monkeypatch.setitem(TABLE, "/config.json", f"http://{NAME}/config.json")
    allow(Access(files=False, hosts=frozenset({NAME})))
    with pytest.raises(HubError, match="plain http"):
        hub_checkpoint("owner/tiny")
