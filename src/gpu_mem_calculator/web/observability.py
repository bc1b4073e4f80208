"""What an operator sees: Prometheus metrics and one line of JSON a request.

Neither holds what a client sent: no body, no query, no header, no address of a client.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("gpu_mem_calculator.web")
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # where processes put their counts together
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

REQUESTS = Counter("gpu_mem_calc_requests", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram("gpu_mem_calc_request_seconds", "From a request's head to the end of its "
                    "answer.", ["route"], buckets=BUCKETS)  # fmt: skip
WAITING = Gauge("gpu_mem_calc_waiting", "Requests that wait for a calculating process.", ["lane"],
                multiprocess_mode="livesum")  # fmt: skip
READY = Gauge("gpu_mem_calc_ready_processes", "Calculating processes that can be asked.", ["lane"],
              multiprocess_mode="livesum")  # fmt: skip
OUTCOMES = Counter(
    "gpu_mem_calc_calculations", "Calculations by how they ended.", ["lane", "outcome"]
)
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


_counted, _timed = cache(REQUESTS.labels), cache(SECONDS.labels)  # finding them takes a while


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, what happened, and its fields."""
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(said).decode()


def start_logs(level: str) -> None:
    """Lines of JSON on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    LOG.handlers[:] = [handler]
    LOG.setLevel(level.upper())
    LOG.propagate = False


def metrics() -> bytes:
    """Every process's counts in Prometheus' text format."""
    if SHARED not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def leave() -> None:
    """This process's gauges end with it."""
    if SHARED in os.environ:
        mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]


class RequestObserver:
    """Counts and logs every request, and puts the headers that keep a browser safe on it."""

    def __init__(self, app: ASGIApp, names: Mapping[Any, str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        seen = {"status": 0, "bytes": 0}
        try:
            await self.app(scope, receive, _watched(send, seen))
        finally:
            route = self.names.get(scope.get("endpoint"), "other")
            _note(scope["method"], route, seen, time.perf_counter() - began)


def _watched(send: Send, seen: dict[str, int]) -> Callable[[Message], Any]:
    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            seen["status"] = message["status"]
            own = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(h for h in RAW if h[0] not in own)]
        elif message["type"] == "http.response.body":
            seen["bytes"] += len(message.get("body", b""))
        await send(message)

    return watched


def _note(method: str, route: str, seen: dict[str, int], seconds: float) -> None:
    """Routes are named by their pattern, and methods are a few: clients cannot invent names."""
    method = method if method in ("GET", "POST", "HEAD") else "other"
    _counted(method, route, seen["status"]).inc()
    _timed(route).observe(seconds)
    if not LOG.isEnabledFor(logging.INFO):
        return
    fields = {"method": method, "route": route, **seen, "ms": round(1000 * seconds, 2)}
    LOG.info("request", extra={"fields": fields})
