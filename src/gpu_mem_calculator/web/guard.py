"""Requests that are refused before they are read: by head, host, origin and number.

A page on another host may not use the service through its visitor's browser: a browser says where a
request comes from, and a request must name a host that only this service can have.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..ledger.units import KIB
from .settings import ServiceSettings
from .worker_messages import JSON, refusal

MOST_HEAD_BYTES, MOST_HEADERS = 32 * KIB, 100
RETRY_SECONDS = 1
MACHINES = ("/api/", "/mcp")  # addresses that no page of another site may use
NAVIGATIONS = ("GET", "HEAD")  # somebody follows a link to this service
ELSEWHERE = ("cross-site", "same-site")  # what a browser says of another page's request

LONG_HEAD = f"the headers are larger than {MOST_HEAD_BYTES:,} bytes or more than {MOST_HEADERS}"
CROSS_SITE = "a page of another site may not use this service"
TOO_MANY = "more than {} requests of one client at the same time; try again in {} second"


class RequestGuard:
    """Refuses what no task should see, with a sentence and its status."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings
        self.requests: Counter[str] = Counter()  # under way, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client = scope["client"][0] if scope.get("client") else ""
        refused = self.refused(scope, client)
        if refused is not None:
            await refused(scope, receive, send)
            return
        self.requests[client] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.requests[client] -= 1
            if not self.requests[client]:
                del self.requests[client]

    def refused(self, scope: Scope, client: str) -> Response | None:
        """The refusal of a request, or None."""
        pairs = scope["headers"]
        if len(pairs) > MOST_HEADERS or sum(len(k) + len(v) for k, v in pairs) > MOST_HEAD_BYTES:
            return refused(431, LONG_HEAD, {"connection": "close"})
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) > 1 or not is_allowed(host, self.settings.allowed_hosts):
            return refused(421, wrong_host(host))
        if scope["path"].startswith(MACHINES) and is_cross_site(scope["method"], headers):
            return refused(403, CROSS_SITE)
        most = self.settings.client_requests
        if self.requests[client] >= most:
            sentence = TOO_MANY.format(most, RETRY_SECONDS)
            return refused(429, sentence, {"retry-after": str(RETRY_SECONDS)})
        return None


def is_allowed(host: str, allowed: list[str]) -> bool:
    """Whether a request may name this host.

    An address, or a name without a dot, is never a stranger's; other names are those of `allowed`,
    in which `.name` stands for every host below it. No host at all is HTTP/1.0.
    """
    name = hostname(host)
    if name is None or "." not in name or _is_address(name):
        return name is not None
    below = (one for one in allowed if one.startswith("."))
    return name in allowed or name.endswith(".localhost") or name.endswith(tuple(below))


def hostname(host: str) -> str | None:
    """The name in a Host header, in small letters and without its port; None where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        valid = parts.netloc == host and not parts.username and (parts.port or 0) >= 0
    except ValueError:
        return None
    return (parts.hostname or "").rstrip(".") if valid else None


def wrong_host(host: str) -> str:
    """The sentence that refuses a host."""
    setting = "GPU_MEM_CALC_ALLOWED_HOSTS"
    return f"this service has not the name {host[:80]!r}; the operator can allow it with {setting}"


def is_cross_site(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of another site sends the request; following a link to it is allowed."""
    if method in NAVIGATIONS and headers.get("sec-fetch-mode", "navigate") == "navigate":
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ELSEWHERE
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refused(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """The response that refuses a request in a sentence."""
    return Response(refusal(status, [sentence]).body, status, headers, media_type=JSON)
