"""Requests that are refused before they are read, and clients that share the service fairly."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx
import msgspec
import pytest

from gpu_mem_calculator.web import connections
from gpu_mem_calculator.web.guard import MOST_HEAD_BYTES, MOST_HEADERS, is_allowed, is_cross_site
from gpu_mem_calculator.web.pool import FairQueue, ProcessLane, QueueFullError
from gpu_mem_calculator.web.settings import ServiceSettings

from ..services import running
from .test_limits import LONG, LONG_RUN, QUICK, on_a_lane

GPT2 = {"model": {"name": "gpt2"}}


def raw(address: str, data: bytes, seconds: float = 20) -> bytes:
    """What the service sends back for these bytes, until it closes."""
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.settimeout(seconds)
        line.sendall(data)
        parts = []
        while part := line.recv(65536):
            parts.append(part)
            if b"}" in part:
                break
    return b"".join(parts)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("localhost", True),
        ("10.1.2.3", True),
        ("gpu-mem", True),
        ("a.localhost:80", True),
        ("calc.example.com", True),
        ("CALC.example.com.:443", True),
        ("x.team.example", True),
        ("", True),
        ("evil.com", False),
        ("evil.com:8000", False),
        ("team.example", False),
        ("calc.example.com.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("user@localhost", False),
        ("localhost:port", False),
        ("localhost/x", False),
        ("[::1", False),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    """Addresses, bare names and the operator's own; nothing that a stranger can own."""
    assert is_allowed(host, ["calc.example.com", ".team.example"]) is allowed


@pytest.mark.parametrize(
    ("method", "headers", "cross"),
    [
        ("POST", {}, False),
        ("POST", {"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, False),
        ("POST", {"sec-fetch-site": "cross-site"}, True),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("POST", {"origin": "http://here:8000", "host": "here:8000"}, False),
        ("POST", {"origin": "http://evil.com", "host": "here:8000"}, True),
        ("POST", {"origin": "null", "host": "here:8000"}, True),
    ],
)
def test_cross_site(method: str, headers: dict[str, str], cross: bool) -> None:
    """A browser says where a request comes from."""
    assert is_cross_site(method, headers) is cross


def test_refusals_are_sentences(client: httpx.Client) -> None:
    """A foreign host, a foreign page, too many headers: each with its status."""
    cases = [
        (421, {"host": "evil.com"}, "evil.com"),
        (403, {"origin": "http://evil.com", "content-type": "text/plain"}, "another site"),
        (431, {f"x-{i}": "1" for i in range(MOST_HEADERS + 1)}, "headers"),
        (431, {"x-long": "1" * MOST_HEAD_BYTES}, "headers"),
    ]
    described = client.get("/openapi.json").json()["paths"]["/api/validate"]["post"]["responses"]
    for status, headers, said in cases:
        found = client.post("/api/validate", json=GPT2, headers=headers)
        assert str(status) in described
        assert (found.status_code, said in found.json()["detail"]) == (status, True), found.text
    form = client.post("/api/validate", content=b'{"model": {"name": "gpt2"}}')
    assert form.json()["valid"]


def test_no_redirect_names_the_client_s_host(client: httpx.Client) -> None:
    """A trailing slash leads to the page of this service, whatever host was named."""
    found = client.get("/docs/", headers={"host": "10.0.0.1"})
    assert (found.status_code, found.headers["location"]) == (307, "/docs")
    assert client.get("/docs/", headers={"host": "evil.com"}).status_code == 421


def test_heads_end(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without an end is refused by its bytes; a slow one and an idle line by the clock."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: "
    assert raw(service, head + b"1" * (8 * MOST_HEAD_BYTES)).startswith(b"HTTP/1.1 431")
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    assert raw(service, head).startswith(b"HTTP/1.1 408")
    assert raw(service, b"") == b""
    monkeypatch.undo()
    two = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert raw(service, two).startswith(b"HTTP/1.1 200")


def test_one_client_has_so_many_requests_at_once() -> None:
    """The next is refused with 429; when one is done, there is room again."""
    with running(ServiceSettings(log_level="error", client_requests=1)) as address:
        body = msgspec.json.encode(LONG_RUN)
        head = f"POST /api/replay HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(head.encode() + body)
            time.sleep(0.5)
            found = httpx.get(f"{address}/api/gpus")
            assert found.status_code == 429
            assert found.headers["retry-after"] == "1"
        time.sleep(1)
        assert httpx.get(f"{address}/api/gpus").status_code == 200


def test_clients_take_turns() -> None:
    """Whoever waits with one task is next, however many another client has; and never with all."""
    queue: FairQueue[str] = FairQueue(share=1)
    for name in ("a1", "a2", "a3", "b1"):
        queue.add(name[0], name)
    assert [queue.start_next(), queue.start_next(), queue.start_next()] == ["a1", "b1", None]
    queue.end("a")
    assert (queue.start_next(), len(queue)) == ("a2", 1)
    queue.discard("a", "a3")
    queue.end("a")
    assert queue.start_next() is None


def test_verdicts_come_before_what_can_wait() -> None:
    """Whoever asked first; of each kind clients take turns."""
    queue: FairQueue[str] = FairQueue(share=2)
    for name in ("what-if a", "room a", "what-if b"):
        queue.add(name[-1], name, later=True)
    queue.add("b", "verdict b")
    queue.add("a", "verdict a")
    assert (len(queue), queue.waiting(True), queue.waiting(False)) == (5, 3, 2)
    assert [queue.start_next() for _ in range(2)] == ["verdict b", "verdict a"]
    queue.discard("a", "room a")
    assert [queue.start_next() for _ in range(3)] == ["what-if a", "what-if b", None]


def test_one_clients_long_tasks_leave_a_process_for_others() -> None:
    """Three replays of one client: another's is answered at once."""

    async def work(lane: ProcessLane) -> float:
        tasks = [asyncio.create_task(lane.run(LONG, "greedy")) for _ in range(3)]
        await asyncio.sleep(0.3)
        began = time.perf_counter()
        assert (await lane.run(QUICK, "other")).status == 200
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return time.perf_counter() - began

    assert on_a_lane(work, size=2, share=1) < 3


def test_waiting_is_not_running() -> None:
    """A task that only waited is told that the service is busy, not that its run is too large."""

    async def work(lane: ProcessLane) -> Any:
        task = asyncio.create_task(lane.run(LONG))
        await asyncio.sleep(0.1)
        lane.seconds = 0.3
        with pytest.raises(QueueFullError):
            await lane.run(QUICK)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on_a_lane(work)


def test_facts_are_packed_and_known_again(client: httpx.Client) -> None:
    """The form, presets and cards travel gzipped, and once."""
    for path in ("/api/form", "/api/presets", "/api/gpus", "/openapi.json"):
        first = client.get(path)
        assert first.headers["content-encoding"] == "gzip"
        again = client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"accept-encoding": "identity"}).json() == first.json()


def test_a_missing_page_is_for_people(client: httpx.Client) -> None:
    """A browser gets a page with links, a program JSON."""
    page = client.get("/nothing", headers={"accept": "text/html"})
    assert (page.status_code, "Page not found" in page.text) == (404, True)
    assert client.get("/nothing").json()["detail"] == "there is no /nothing; see /docs"
    assert client.get("/api/nothing", headers={"accept": "text/html"}).json()


def test_a_key_twice_is_refused(client: httpx.Client) -> None:
    """Not the last one taken."""
    body = b'{"model": {"name": "gpt2", "name": "gpt2-xl"}}'
    found = client.post("/api/validate", content=body)
    assert found.status_code == 422
    assert "twice in one object" in found.json()["detail"]
