"""The official client, with a server on standard input and output, on HTTP, or in this process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from gpu_mem_calculator.web.agents.server import agent_server
from gpu_mem_calculator.web.settings import ServiceSettings
from tests.services import free_port

T = TypeVar("T")
COMMAND = ("-m", "gpu_mem_calculator", "mcp")
START_SECONDS = 60.0


def on_stdio(asks: Callable[[Client], Awaitable[T]], **variables: str) -> T:
    """What a client of `gpu-mem-calc mcp` gets."""
    variables = {**os.environ, "GPU_MEM_CALC_SLOW_PROCESSES": "1", **variables}
    command = StdioServerParameters(command=sys.executable, args=[*COMMAND], env=variables)
    return _asked(lambda: Client(stdio_client(command)), asks)


def on_http(address: str, asks: Callable[[Client], Awaitable[T]]) -> T:
    """What a client of an address gets."""
    return _asked(lambda: Client(address), asks)


def in_process(asks: Callable[[Client], Awaitable[T]], **settings: Any) -> T:
    """What a client of a server with these settings gets."""
    chosen = ServiceSettings(slow_processes=1, log_level="error", **settings)
    return _asked(lambda: Client(agent_server(chosen, local=True)), asks)


def _asked(client: Callable[[], Client], asks: Callable[[Client], Awaitable[T]]) -> T:
    async def session() -> T:
        async with client() as made:
            return await asks(made)

    return asyncio.run(session())


@contextmanager
def http_server(**variables: str) -> Iterator[str]:
    """The address of `gpu-mem-calc mcp --http` on this machine."""
    port = free_port()
    words = [sys.executable, *COMMAND, "--http", "--port", str(port)]
    variables = {**os.environ, "GPU_MEM_CALC_SLOW_PROCESSES": "1", **variables}
    with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert f"127.0.0.1:{port}/mcp" in server.stdout.readline()
            _wait_for(port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()
            server.communicate()


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            httpx.get(f"http://127.0.0.1:{port}/")
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


def text(found: Any) -> str:
    """The text of an answer."""
    (content,) = found.content
    return str(content.text)


def tokens(found: Any) -> float:
    """The size of an answer, text and data, at four bytes a token."""
    data = found.structured_content
    shown = "" if data is None else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return len((text(found) + shown).encode()) / 4
