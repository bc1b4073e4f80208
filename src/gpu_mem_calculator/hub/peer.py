"""Whom a request reaches: a host's name is looked up once, judged, and that address connected to.

So a name that may be asked cannot lead inside: not to this machine, its network or its cloud's
metadata. The one that HF_ENDPOINT names may lie there, as mirrors do.
"""

from __future__ import annotations

import os
import socket
import ssl
from functools import cache
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, Request

from .access import access, endpoint
from .bounds import HubError

PORTS = {"http": 80, "https": 443}
NAT64 = IPv6Network("64:ff9b::/96")


def origin(address: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address: who answers there."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet's, also where another wraps it."""
    place = ip_address(address)
    if isinstance(place, IPv6Address):
        inner = place.ipv4_mapped or place.sixtofour
        if place in NAT64:
            inner = IPv4Address(int(place) & (2**32 - 1))
        if inner is not None:
            return is_public(str(inner))
        if place.is_site_local or place.teredo is not None:
            return False
    return place.is_global and not place.is_multicast


def connected(host: str, port: int, seconds: float | None) -> socket.socket:
    """A connection to a host that may be asked, at an address that may be."""
    if not access().reaches(host):
        raise HubError("the hub has it on a host that this service may not ask")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    named = bool(os.environ.get("HF_ENDPOINT")) and origin(endpoint())[1:] == (host.lower(), port)
    if not named and not all(is_public(str(place[0])) for *_, place in found):
        raise HubError("the hub has it on a host that lies inside, and this service asks none")
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


class _Checked(HTTPConnection):
    """Plain http to an address that was judged."""

    def connect(self) -> None:
        self.sock = connected(self.host, self.port, self.timeout)


class _CheckedTls(HTTPSConnection):
    """The same over TLS: the certificate is the name's."""

    def connect(self) -> None:
        made = connected(self.host, self.port, self.timeout)
        self.sock = _context().wrap_socket(made, server_hostname=self.host)


def _direct(request: Request) -> bool:
    """Whether no proxy stands between."""
    return request.host == urlsplit(request.full_url).netloc


class CheckedHandler(HTTPHandler):
    """http requests; a proxy is the operator's, and reached as it is."""

    def http_open(self, req: Request) -> HTTPResponse:
        """Ask."""
        return self.do_open(_Checked if _direct(req) else HTTPConnection, req)


class CheckedTlsHandler(HTTPSHandler):
    """https requests."""

    def https_open(self, req: Request) -> HTTPResponse:
        """Ask."""
        return self.do_open(_CheckedTls if _direct(req) else HTTPSConnection, req)
