"""A process that answers is killed under load: answers are whole, and the service goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from ..services import free_port

BODY = json.dumps({"model": {"name": "gpt2"}}).encode()
HEAD = f"POST /api/calculate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


Two = tuple[subprocess.Popen[bytes], int]


async def one(port: int, seen: Counter[str], until: float) -> None:
    """Ask again and again, connecting anew when a connection breaks."""
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            seen["unanswered"] += 1
            continue
        try:
            while time.monotonic() < until:
                await asked(reader, writer)
                seen["whole"] += 1
        except asyncio.IncompleteReadError as error:
            # before its answer began, or in the middle of it
            seen["unanswered" if not error.partial else "torn"] += 1
        except OSError:
            seen["unanswered"] += 1
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One question, its answer read to the end."""
    writer.write(HEAD + BODY)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    json.loads(await reader.readexactly(length))


def answering(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that answer: those with calculating processes of their own."""
    children = psutil.Process(server.pid).children()
    return [child for child in children if len(child.children()) >= 2]


@pytest.fixture
def two() -> Iterator[Two]:
    """A service of two processes, and its port."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "gpu_mem_calculator", "serve", "--port", f"{port}", "--workers=2"],
        env=os.environ | {"GPU_MEM_CALC_LOG_LEVEL": "error"},
        stdout=subprocess.DEVNULL,
    )
    _wait(lambda: len(answering(server)) == 2 and _ready(port))
    yield server, port
    server.send_signal(signal.SIGINT)
    assert server.wait(30) is not None


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _wait(what: Callable[[], bool]) -> None:
    for _ in range(600):
        if what():
            return
        time.sleep(0.1)
    raise RuntimeError("waited too long")


def test_no_answer_is_torn_and_the_service_goes_on(
    two: tuple[subprocess.Popen[bytes], int],
) -> None:
    """Answers are whole or not there; the process comes back; its calculating processes end."""
    server, port = two
    victim = answering(server)[0]
    orphans = victim.children()
    seen: Counter[str] = Counter()

    async def load() -> None:
        asking = [one(port, seen, time.monotonic() + 2.5) for _ in range(8)]

        async def kill() -> None:
            await asyncio.sleep(1)
            victim.kill()

        await asyncio.gather(kill(), *asking)

    asyncio.run(load())
    assert seen["whole"] > 20
    assert seen["torn"] == 0
    _wait(lambda: len(answering(server)) == 2)
    assert httpx.post(f"http://127.0.0.1:{port}/api/calculate", content=BODY).status_code == 200
    _wait(lambda: not any(orphan.is_running() for orphan in orphans))
