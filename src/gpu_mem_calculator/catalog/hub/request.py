"""One file's bytes from a server; the address of the request and of every redirect is checked.

The token is sent to the hub only, never to a host that the hub redirects to. A temporary error is
tried again, after a longer pause each time. The time is checked between pieces of an answer, each
of which may take SECONDS; the system's own timeout applies to name look-ups.
"""

from __future__ import annotations

import re
import socket
import ssl
import string
from functools import cache
from http.client import HTTPException
from random import uniform
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import OpenerDirector, ProxyHandler, getproxies

from .access import access, endpoint
from .bounds import NO_LOGIN, Allowance, HubError, TemporaryHubError, printable_address
from .environment import token
from .peer import CheckedHandler, CheckedTlsHandler, RequestRoute, RoutedRequest, origin
from .refusals import refusal

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
