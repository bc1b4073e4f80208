"""Start the service: one process, or several that share a port and are restarted when they die."""

from __future__ import annotations

import os
import socket
import tempfile

import uvicorn
from starlette.types import ASGIApp

from ..runfile.text.errors import InputError
from .observability import SHARED
from .settings import ServiceSettings, environment

CONNECTIONS = 1000  # open connections of each process
LOCAL = ("127.0.0.1", "::1", "localhost")


def run(settings: ServiceSettings) -> None:
    """Serve until interrupted; prints the address."""
    check_port(settings)
    os.environ.update(environment(settings))
    print(f"gpu-mem-calculator on {address(settings)}  (Ctrl+C ends it)", flush=True)
    with tempfile.TemporaryDirectory() as counts:
        if settings.workers > 1:
            os.environ[SHARED] = counts
        listen("gpu_mem_calculator.web.app:app", settings)


def listen(app: ASGIApp | str, settings: ServiceSettings) -> None:
    """Serve an application until interrupted; of several processes it is an import path."""
    if settings.host not in LOCAL:
        print("Other machines can reach it: put it behind a proxy that authenticates users.")
    uvicorn.run(
        app,
        http="gpu_mem_calculator.web.connections:BoundedConnection",
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        limit_concurrency=CONNECTIONS,
    )


def address(settings: ServiceSettings) -> str:
    """The URL of the service, for a browser on this machine."""
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def check_port(settings: ServiceSettings) -> None:
    """Raise a sentence where the host and port cannot be listened on."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        place = f"{settings.host} port {settings.port}"
        raise InputError(f"cannot listen on {place}: {reason}; try another --port") from None
