"""A service as it runs: on a port of this machine, with its calculating processes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_mem_calculator.web.app import create_app
from gpu_mem_calculator.web.connections import BoundedConnection
from gpu_mem_calculator.web.settings import ServiceSettings


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class Remembering:
    """An app that calculates the same question once, for tests that ask it again and again."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.answers: dict[tuple[str, bytes, bytes], list[Message]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as before, else as the app does."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        asked = [await receive()]
        while asked[-1].get("more_body"):
            asked.append(await receive())
        body = b"".join(one.get("body", b"") for one in asked)
        question = (scope["path"], scope["query_string"], body)
        answer: list[Message] = []

        async def receive_again() -> Message:
            return asked.pop(0) if asked else await receive()

        async def send_and_keep(message: Message) -> None:
            answer.append(message)
            await send(message)

        if question in self.answers:
            for message in self.answers[question]:
                await send(message)
            return None
        await self.app(scope, receive_again, send_and_keep)
        whole = answer and not answer[-1].get("more_body")  # its client stayed to the end
        if whole and answer[0]["status"] == 200:
            self.answers[question] = answer
        return None


@contextmanager
def running(
    settings: ServiceSettings, port: int | None = None, remember: bool = False
) -> Iterator[str]:
    """The address of a service with these settings."""
    port = port or free_port()
    app: ASGIApp = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            Remembering(app) if remember else app,
            port=port,
            log_level="warning",
            access_log=False,
            lifespan="on",
            http=BoundedConnection,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(f"{address}/readyz").status_code == 200:
                break
        except httpx.TransportError:
            time.sleep(0.1)
    else:
        raise RuntimeError("the service does not start")
    yield address
    server.should_exit = True
    thread.join(20)
