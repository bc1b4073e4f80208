"""One file's bytes from a server; the address of the request and of every redirect is checked.

A host's name is resolved once, the address is checked, and that address is connected to. So neither
a name nor a redirect can reach this machine, its network or its cloud's metadata. Two hosts may be
on a private network: that of HF_ENDPOINT, which may be a mirror, and on the command line the first
host of a request.

The token is sent to the hub only, never to a host that the hub redirects to. A temporary error is
tried again, after a longer pause each time. The time is checked between pieces of an answer, each
of which may take SECONDS; the system's own timeout applies to name look-ups. A refusal becomes a
sentence that says what to do; the hub names its reasons in X-Error-Code (huggingface_hub 1.33,
utils/_http.py).
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import string
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from random import uniform
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    getproxies,
)

from . import tables
from .access import access, endpoint
from .bounds import (
    NO_LOGIN,
    Allowance,
    HubError,
    MissingFileError,
    TemporaryHubError,
    printable_address,
)
from .environment import token

PORTS = {"http": 80, "https": 443}
NAT64 = IPv6Network("64:ff9b::/96")


def origin(address: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme)


def is_link_local(address: str) -> bool:
    """Whether an IP address, or the IPv4 address embedded in it, is link-local."""
    return _embedded_ipv4(ip_address(address)).is_link_local


def _embedded_ipv4(place: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that is embedded in an IPv6 address; else the address itself."""
    if not isinstance(place, IPv6Address):
        return place
    if place in NAT64:
        return IPv4Address(int(place) & (2**32 - 1))
    return place.ipv4_mapped or place.sixtofour or place


def is_public(address: str) -> bool:
    """Whether an IP address, or the IPv4 address embedded in it, is public."""
    place = _embedded_ipv4(ip_address(address))
    if isinstance(place, IPv6Address) and (place.is_site_local or place.teredo is not None):
        return False
    return place.is_global and not place.is_multicast


class RequestRoute:
    """The first address of a request, and what its redirects may reach.

    `inside`: whether the first host is on a private network; None until it is connected to.
    """

    def __init__(self, address: str) -> None:
        self.start = address
        self.inside: bool | None = None

    def check(self, host: str, port: int | None, addresses: list[str]) -> None:
        """Raise a HubError where a host's IP addresses may not be connected to.

        On the command line the first host may be anywhere. If it is on a private network, as a
        mirror may be, redirects may stay there, but not at link-local addresses: a cloud's metadata
        is at one.
        """
        public, peer = all(map(is_public, addresses)), (host.lower(), port)
        if access().hosts is not None:
            configured = bool(os.environ.get("HF_ENDPOINT")) and origin(endpoint())[1:] == peer
            if not configured and not public:
                raise HubError(
                    "the hub redirects to a private address, which this service does not read"
                )
            return
        start = origin(self.start)[1:] == peer
        if start and self.inside is None:  # once: a name server may answer differently later
            self.inside = not public
        elif not public and not (self.inside and (start or not any(map(is_link_local, addresses)))):
            where = printable_address(self.start)
            raise HubError(
                f"{where}: it is redirected to {host}, which is not a public address; "
                "download the file and give its path"
            )


def connect_to(host: str, port: int, seconds: float | None, route: RequestRoute) -> socket.socket:
    """A connection to a host, after its name and its IP addresses have been checked."""
    if not access().reaches(host):
        raise HubError("the hub redirects to a host that this service may not contact")
    candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    route.check(host, port, [str(place[0]) for *_, place in candidates])
    failure: OSError = OSError("no address")
    for family, kind, protocol, _, place in candidates:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(seconds)
            connection.connect(place)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


@cache
def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _CheckedConnection(HTTPConnection):
    """Plain http to a checked address."""

    def __init__(self, *args: Any, route: RequestRoute, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.route = route

    def connect(self) -> None:
        self.sock = connect_to(self.host, self.port, self.timeout, self.route)


class _CheckedTlsConnection(_CheckedConnection, HTTPSConnection):
    """The same over TLS; the certificate must be for the host's name."""

    def connect(self) -> None:
        super().connect()
        self.sock = _context().wrap_socket(self.sock, server_hostname=self.host)


class RoutedRequest(Request):
    """A request with its route."""

    def __init__(self, address: str, route: RequestRoute, headers: dict[str, str]) -> None:
        super().__init__(address, headers=headers)
        self.route = route


def _route(request: Request) -> RequestRoute | None:
    """The route by which a connection is checked; None through a proxy, which resolves names.

    An IP address needs no resolving, so a redirect to one is checked here.
    """
    if not isinstance(request, RoutedRequest):
        raise TypeError("a request without its route")
    if request.host == urlsplit(request.full_url).netloc:
        return request.route
    _, host, port = origin(request.full_url)
    if access().hosts is None and (host == "localhost" or _is_ip(host)):
        request.route.check(host, port, ["127.0.0.1" if host == "localhost" else host])
    return None


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class CheckedHandler(HTTPHandler):
    """Opens http requests; a proxy is the operator's, and its address is not checked."""

    def http_open(self, req: Request) -> HTTPResponse:
        """Send a request and return the answer."""
        route = _route(req)
        return self.do_open(
            partial(_CheckedConnection, route=route) if route else HTTPConnection, req
        )


class CheckedTlsHandler(HTTPSHandler):
    """Opens https requests."""

    def https_open(self, req: Request) -> HTTPResponse:
        """Send a request and return the answer."""
        route = _route(req)
        return self.do_open(
            partial(_CheckedTlsConnection, route=route) if route else HTTPSConnection, req
        )


TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
MOST_WAIT = 30.0  # the longest wait in seconds that a server may ask for
# Refusals of the hub: the sentence without a token, and with one; those of other servers.
HUBS: Mapping[str, tuple[str, str]] = tables("request")["hubs"]
OTHERS: Mapping[str, str] = tables("request")["others"]
HIDDEN = "it is not there, or not open to this service"  # a service's user has no token to set
BY_HAND = "download its config.json and give the path"


def refusal(answer: Any, address: str, where: str) -> HubError:
    """The error for an answer that is not the file: missing, temporary or lasting."""
    status = int(answer.status)
    if access().hosts is not None and status in (401, 403, 404):
        return (MissingFileError if status == 404 else HubError)(f"{where}: {HIDDEN}")
    if status in TEMPORARY:
        return _temporary(answer, status, where)
    code = answer.headers.get("X-Error-Code", "")
    if "disabled" in answer.headers.get("X-Error-Message", ""):
        code = "DisabledRepo"
    if origin(address) == origin(endpoint()):
        words = HUBS.get(code) or HUBS.get(str(status))
        if words is not None:
            current = token()
            return HubError(f"{where}: {words[bool(current.value)].format(current.source)}")
        return _plain(status, where, "")
    return _plain(status, where, f"; {BY_HAND}" if status in (401, 403) else "")


def _plain(status: int, where: str, hint: str) -> HubError:
    kind = MissingFileError if status in (404, 410) else HubError
    return kind(f"{where}: {OTHERS.get(str(status), f'HTTP {status}')}{hint}")


def _temporary(answer: Any, status: int, where: str) -> HubError:
    """The error for a server that is busy or broken, with the wait that it asks for."""
    wait = _retry_after(answer.headers.get("Retry-After", ""))
    if status == 429:
        sentence = f"{where}: too many requests (HTTP 429); try again later"
    else:
        sentence = f"{where}: the server has trouble (HTTP {status}); try again later"
    if wait > MOST_WAIT:
        return HubError(f"{sentence}, in {wait:.0f} seconds as it says")
    return TemporaryHubError(sentence, wait)


def _retry_after(text: str) -> float:
    """Seconds of a Retry-After header, which is a number or a date; 0 where it is neither."""
    from datetime import UTC, datetime

    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    try:
        until = parsedate_to_datetime(text)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


SECONDS = 10
TRIES, PAUSE = 4, 0.5  # tries, and seconds before the second; each pause doubles
REDIRECTS = 10
MOVED = (301, 302, 303, 307, 308)
PIECE = 2**16
PLAIN_HOST = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.ASCII)


def get(address: str, headers: dict[str, str], most: int, allowance: Allowance) -> bytes:
    """The bytes at an address: all of them, at most `most`, or the range that `headers` name."""
    where = printable_address(address)
    for tried in range(TRIES):
        try:
            return _get_once(address, headers, most, allowance, where)
        except TemporaryHubError as error:
            pause = max(error.wait, uniform(0.5, 1.0) * PAUSE * 2**tried)
            if tried == TRIES - 1 or pause >= allowance.seconds(where):
                raise
            allowance.pause(pause)
    raise AssertionError("the last try returns or raises")


def _get_once(
    address: str, headers: dict[str, str], most: int, allowance: Allowance, where: str
) -> bytes:
    """One try, with all its redirects."""
    route = RequestRoute(address)
    try:
        for _ in range(REDIRECTS + 1):
            _check(address, route, where)
            with _answer(address, route, headers, allowance.seconds(where)) as answer:
                onward = answer.headers.get("Location") if answer.status in MOVED else None
                if onward is None:
                    ranged = "Range" in headers
                    if ranged and answer.status == 416:
                        return b""  # after the end of the file
                    if not 200 <= answer.status < 300:
                        raise refusal(answer, address, where)
                    return _body(answer, ranged, most, allowance, where)
            address = urljoin(address, quote(onward, string.punctuation, "iso-8859-1"))
    except (OSError, ValueError, HTTPException) as error:
        raise error if isinstance(error, HubError) else _connection_error(error, where) from None
    raise HubError(f"{where}: it is sent on more than {REDIRECTS} times")


def _connection_error(error: Exception, where: str) -> HubError:
    """The error for a failed connection: lasting or temporary, depending on its cause."""
    cause = getattr(error, "reason", None) or error
    lasting = isinstance(cause, (ValueError, ssl.SSLCertVerificationError)) or (
        isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
    )
    why = f", {cause}" if access().hosts is None else ""
    if why and isinstance(cause, socket.gaierror):
        why = " (DNS lookup failed): offline?"
    return (HubError if lasting else TemporaryHubError)(f"{where}: cannot be reached{why}")


def _check(address: str, route: RequestRoute, where: str) -> None:
    """Raise a HubError for an address that may not be asked."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise HubError(f"{where}: its address begins with {parts.scheme!r}; https is read")
    if parts.scheme == "http" and urlsplit(route.start).scheme != "http":
        raise HubError(f"{where}: it is redirected from https to plain http; https is read")
    if access().hosts is None:
        if "@" in parts.netloc:
            raise HubError(f"{where}: {NO_LOGIN}")
        return
    plain = PLAIN_HOST.fullmatch(parts.netloc.lower()) is not None
    if not plain or not access().reaches(parts.hostname or ""):
        raise HubError(f"{where}: the hub redirects to a host that this service may not contact")


def _answer(address: str, route: RequestRoute, headers: dict[str, str], seconds: float) -> Any:
    """A server's answer of any status; the token is sent to the hub only."""
    bearer = token().value if origin(address) == origin(endpoint()) else ""
    login = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    request = RoutedRequest(address, route, {**headers, **login})
    return _opener(tuple(getproxies().items())).open(request, timeout=min(SECONDS, seconds))


@cache
def _opener(proxies: tuple[tuple[str, str], ...]) -> OpenerDirector:
    """An opener for http and https that follows no redirect.

    A proxy of the environment is used; it then resolves the names of the hosts.
    """
    opener = OpenerDirector()
    for handler in (ProxyHandler(dict(proxies)), CheckedHandler(), CheckedTlsHandler()):
        opener.add_handler(handler)
    return opener


def _body(answer: Any, ranged: bool, most: int, allowance: Allowance, where: str) -> bytes:
    """An answer's bytes; a TemporaryHubError where they are fewer than its Content-Length."""
    if ranged and answer.status != 206:
        raise HubError(f"{where}: the server sends whole files only; download its header")
    length = answer.headers.get("Content-Length", "")
    wanted = int(length) if length.isascii() and length.isdigit() else None
    if not ranged and (wanted or 0) > most:
        raise HubError(f"{where}: it is larger than {most:,} bytes")
    data = bytearray()
    while len(data) < most:
        piece = answer.read1(min(PIECE, most - len(data)))
        if not piece:
            break
        data += piece
        allowance.take(len(piece), where)
        allowance.seconds(where)
    if wanted is not None and len(data) < min(wanted, most):
        raise TemporaryHubError(f"{where}: it ends after {len(data):,} of {wanted:,} bytes")
    return bytes(data)
