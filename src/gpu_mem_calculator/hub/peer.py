"""Whom a request reaches: a host's name is looked up once, judged, and that address connected to.

So neither a name nor a redirect can lead inside: not to this machine, its network or its cloud's
metadata. The host that HF_ENDPOINT names may be there, as mirrors are, and on a command line
whichever host its user asks first.
"""

from __future__ import annotations

import os
import socket
import ssl
from functools import cache, partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, Request

from .access import access, endpoint
from .bounds import HubError, said

PORTS = {"http": 80, "https": 443}
NAT64 = IPv6Network("64:ff9b::/96")


def origin(address: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address: who answers there."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme)


def is_link_local(address: str) -> bool:
    """Whether an IP address is link-local, also where another wraps it."""
    return _wrapped(ip_address(address)).is_link_local


def _wrapped(place: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for; else the address itself."""
    if not isinstance(place, IPv6Address):
        return place
    if place in NAT64:
        return IPv4Address(int(place) & (2**32 - 1))
    return place.ipv4_mapped or place.sixtofour or place


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet's, also where another wraps it."""
    place = _wrapped(ip_address(address))
    if isinstance(place, IPv6Address) and (place.is_site_local or place.teredo is not None):
        return False
    return place.is_global and not place.is_multicast


class Way:
    """Where a request began, and what its redirects may therefore reach."""

    def __init__(self, address: str) -> None:
        self.start = address
        self.inside: bool | None = None  # whether the first host is; None until it is connected

    def check(self, host: str, port: int | None, places: list[str]) -> None:
        """Raise a sentence where a host's IP addresses may not be connected to.

        On a command line the first host may be anywhere. Where it is on a private network, as a
        mirror may be, its redirects may stay there, but for link-local addresses: a cloud's
        metadata is at one.
        """
        public, here = all(map(is_public, places)), (host.lower(), port)
        if access().hosts is not None:
            named = bool(os.environ.get("HF_ENDPOINT")) and origin(endpoint())[1:] == here
            if not named and not public:
                raise HubError(
                    "the hub has it on a host that lies inside, and this service asks none"
                )
            return
        start = origin(self.start)[1:] == here
        if start and self.inside is None:  # once: a name server may change its mind
            self.inside = not public
        elif not public and not (self.inside and (start or not any(map(is_link_local, places)))):
            raise HubError(
                f"{said(self.start)}: it is redirected to {host}, which is not a public address; "
                "download the file and give its path"
            )


def connected(host: str, port: int, seconds: float | None, way: Way) -> socket.socket:
    """A connection to a host that may be asked, at an address that may be."""
    if not access().reaches(host):
        raise HubError("the hub has it on a host that this service may not ask")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    way.check(host, port, [str(place[0]) for *_, place in found])
    failed: OSError = OSError("no address")
    for family, kind, protocol, _, place in found:
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(seconds)
            made.connect(place)
        except OSError as error:
            made.close()
            failed = error
        else:
            return made
    raise failed


@cache
def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _CheckedConnection(HTTPConnection):
    """Plain http to an address that was judged."""

    def __init__(self, *args: Any, way: Way, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.way = way

    def connect(self) -> None:
        self.sock = connected(self.host, self.port, self.timeout, self.way)


class _CheckedTlsConnection(HTTPSConnection):
    """The same over TLS: the certificate is the name's."""

    def __init__(self, *args: Any, way: Way, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.way = way

    def connect(self) -> None:
        made = connected(self.host, self.port, self.timeout, self.way)
        self.sock = _context().wrap_socket(made, server_hostname=self.host)


class WayRequest(Request):
    """A request that knows the way it is part of."""

    def __init__(self, address: str, way: Way, headers: dict[str, str]) -> None:
        super().__init__(address, headers=headers)
        self.way = way


def _way(request: Request) -> Way | None:
    """The way that a connection is judged by; None through a proxy, which looks names up itself.

    An IP address needs no look-up, so a redirect to one is judged here.
    """
    if not isinstance(request, WayRequest):
        raise TypeError("a request without its way")
    if request.host == urlsplit(request.full_url).netloc:
        return request.way
    _, host, port = origin(request.full_url)
    if access().hosts is None and (host == "localhost" or _is_ip(host)):
        request.way.check(host, port, ["127.0.0.1" if host == "localhost" else host])
    return None


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class CheckedHandler(HTTPHandler):
    """http requests; a proxy is the operator's, and reached as it is."""

    def http_open(self, req: Request) -> HTTPResponse:
        """Ask."""
        way = _way(req)
        return self.do_open(partial(_CheckedConnection, way=way) if way else HTTPConnection, req)


class CheckedTlsHandler(HTTPSHandler):
    """https requests."""

    def https_open(self, req: Request) -> HTTPResponse:
        """Ask."""
        way = _way(req)
        return self.do_open(
            partial(_CheckedTlsConnection, way=way) if way else HTTPSConnection, req
        )
