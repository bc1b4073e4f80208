"""Which IP addresses a request may reach: a host's name is resolved once, the address is checked,
and that address is connected to.

So neither a name nor a redirect can reach this machine, its network or its cloud's metadata. Two
hosts may be on a private network: that of HF_ENDPOINT, which may be a mirror, and on the command
line the first host of a request.
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
from .bounds import HubError, printable_address

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
