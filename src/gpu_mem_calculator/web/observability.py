"""What an operator sees: Prometheus metrics and one line of JSON for each request.

Neither holds what a client sent: no body, no query, no header, no address of a client.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..tools.translation.arguments import tables
from .logs import LOG, log_fault
from .worker_messages import JSON, fault

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder in which processes share their counts
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

REQUESTS = Counter("gpu_mem_calc_requests", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "gpu_mem_calc_request_seconds",
    "From a request's head to the end of its answer.",
    ["route"],
    buckets=BUCKETS,
)
_lane_gauge = partial(Gauge, labelnames=["lane"], multiprocess_mode="livesum")
WAITING = _lane_gauge("gpu_mem_calc_waiting", "Requests that wait for a calculating process.")
READY = _lane_gauge("gpu_mem_calc_ready_processes", "Calculating processes that can be asked.")
OUTCOMES = Counter(
    "gpu_mem_calc_calculations", "Calculations by how they ended.", ["lane", "outcome"]
)
HEADERS: Mapping[str, str] = tables(__file__)
HEADER_BYTES = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


# cached: looking a label up takes a while
_request_counter = cache(REQUESTS.labels)
_request_timer = cache(SECONDS.labels)


def metrics() -> bytes:
    """The counts of every process in Prometheus' text format."""
    if SHARED not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def drop_gauges() -> None:
    """Remove this process's gauges from the shared counts, as it ends."""
    if SHARED in os.environ:
        mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]


class RequestObserver:
    """Counts and logs every request, and adds the security headers to its response."""

    def __init__(self, app: ASGIApp, names: Mapping[Any, str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        response = {"status": 0, "bytes": 0}
        observed = _observed_send(send, response)
        try:
            await self.app(scope, receive, observed)
        except Exception as error:
            reply = fault()
            log_fault(reply.fault, error)
            if response["status"]:
                raise  # it has begun: the connection is closed
            head = {"x-fault-id": reply.fault, "cache-control": "no-store"}
            await Response(reply.body, 500, head, media_type=JSON)(scope, receive, observed)
        finally:
            route = self.names.get(scope.get("endpoint"), "other")
            _count_and_log(scope["method"], route, response, time.perf_counter() - start)


def _observed_send(send: Send, response: dict[str, int]) -> Callable[[Message], Any]:
    async def observed(message: Message) -> None:
        if message["type"] == "http.response.start":
            response["status"] = message["status"]
            names = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(h for h in HEADER_BYTES if h[0] not in names),
            ]
        elif message["type"] == "http.response.body":
            response["bytes"] += len(message.get("body", b""))
        await send(message)

    return observed


def _count_and_log(method: str, route: str, response: dict[str, int], seconds: float) -> None:
    """Count and log one request.

    `route` is a pattern and methods are a fixed set: clients cannot add labels to the metrics.
    """
    method = method if method in ("GET", "POST", "HEAD") else "other"
    _request_counter(method, route, response["status"]).inc()
    _request_timer(route).observe(seconds)
    if not LOG.isEnabledFor(logging.INFO):
        return
    fields = {"method": method, "route": route, **response, "ms": round(1000 * seconds, 2)}
    LOG.info("request", extra={"fields": fields})
