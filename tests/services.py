"""A service as it runs: on a port of this machine, with its calculating processes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn

from gpu_mem_calculator.web.app import create_app
from gpu_mem_calculator.web.connections import BoundedConnection
from gpu_mem_calculator.web.settings import ServiceSettings


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextmanager
def running(settings: ServiceSettings, port: int | None = None) -> Iterator[str]:
    """The address of a service with these settings."""
    port = port or free_port()
    app = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
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
