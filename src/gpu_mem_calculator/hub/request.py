"""One file's bytes from a server: every address on the way is checked, and no other is asked.

The token goes to the hub alone, wherever the hub sends a request on to. What may be otherwise in a
moment is asked again, a few times and later each time. Time is checked between pieces of an
answer, and each waits SECONDS at most; a name is looked up in the system's own time.
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
from .bounds import NO_LOGIN, Allowance, HubError, TemporaryHubError, said
from .environment import token
from .peer import CheckedHandler, CheckedTlsHandler, Way, WayRequest, origin
from .refusals import refusal

SECONDS = 10
TRIES, PAUSE = 4, 0.5  # how often, and seconds before the second; each next one is twice as long
REDIRECTS = 10
MOVED = (301, 302, 303, 307, 308)
PIECE = 2**16
PLAIN_HOST = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.ASCII)


def get(address: str, headers: dict[str, str], most: int, allowance: Allowance) -> bytes:
    """The bytes behind an address: all of them, or as many as a range asks for."""
    where = said(address)
    for tried in range(TRIES):
        try:
            return _got(address, headers, most, allowance, where)
        except TemporaryHubError as error:
            pause = max(error.wait, uniform(0.5, 1.0) * PAUSE * 2**tried)
            if tried == TRIES - 1 or pause >= allowance.seconds(where):
                raise
            allowance.pause(pause)
    raise AssertionError("the last try returns or raises")


def _got(
    address: str, headers: dict[str, str], most: int, allowance: Allowance, where: str
) -> bytes:
    """One try, with every redirect."""
    way = Way(address)
    try:
        for _ in range(REDIRECTS + 1):
            _check(address, way, where)
            with _answer(address, way, headers, allowance.seconds(where)) as answer:
                onward = answer.headers.get("Location") if answer.status in MOVED else None
                if onward is None:
                    ranged = "Range" in headers
                    if ranged and answer.status == 416:
                        return b""  # behind the end
                    if not 200 <= answer.status < 300:
                        raise refusal(answer, address, where)
                    return _body(answer, ranged, most, allowance, where)
            address = urljoin(address, quote(onward, string.punctuation, "iso-8859-1"))
    except (OSError, ValueError, HTTPException) as error:
        raise error if isinstance(error, HubError) else _unreached(error, where) from None
    raise HubError(f"{where}: it is sent on more than {REDIRECTS} times")


def _unreached(error: Exception, where: str) -> HubError:
    """No answer, or not all of one; whether to ask again is a matter of what went wrong."""
    cause = getattr(error, "reason", None) or error
    lasting = isinstance(cause, (ValueError, ssl.SSLCertVerificationError)) or (
        isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
    )
    why = f", {cause}" if access().hosts is None else ""
    if why and isinstance(cause, socket.gaierror):
        why = ": no network, or no such host, as its name is not found"
    return (HubError if lasting else TemporaryHubError)(f"{where}: cannot be reached{why}")


def _check(address: str, way: Way, where: str) -> None:
    """Raise a sentence for an address that may not be asked."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise HubError(f"{where}: its address begins with {parts.scheme!r}; https is read")
    if parts.scheme == "http" and urlsplit(way.start).scheme != "http":
        raise HubError(f"{where}: it is redirected from https to plain http; https is read")
    if access().hosts is None:
        if "@" in parts.netloc:
            raise HubError(f"{where}: {NO_LOGIN}")
        return
    plain = PLAIN_HOST.fullmatch(parts.netloc.lower()) is not None
    if not plain or not access().reaches(parts.hostname or ""):
        raise HubError(f"{where}: the hub has it on a host that this service may not ask")


def _answer(address: str, way: Way, headers: dict[str, str], seconds: float) -> Any:
    """A server's answer, whatever it is."""
    found = token() if origin(address) == origin(endpoint()) else None
    own = {"Authorization": f"Bearer {found.value}"} if found and found.value else {}
    request = WayRequest(address, way, {**headers, **own})
    return _opener(tuple(getproxies().items())).open(request, timeout=min(SECONDS, seconds))


@cache
def _opener(proxies: tuple[tuple[str, str], ...]) -> OpenerDirector:
    """An opener for http and https that follows no redirect.

    A proxy that the environment names is used; it then looks up the names that may be asked.
    """
    opener = OpenerDirector()
    for handler in (ProxyHandler(dict(proxies)), CheckedHandler(), CheckedTlsHandler()):
        opener.add_handler(handler)
    return opener


def _body(answer: Any, ranged: bool, most: int, allowance: Allowance, where: str) -> bytes:
    """An answer's bytes. Fewer than it says it has are no answer."""
    if ranged and answer.status != 206:
        raise HubError(f"{where}: the server sends whole files only; download its header")
    length = answer.headers.get("Content-Length", "")
    wanted = int(length) if length.isascii() and length.isdigit() else None
    if not ranged and (wanted or 0) > most:
        raise HubError(f"{where}: it is larger than {most:,} bytes")
    found = bytearray()
    while len(found) < most:
        piece = answer.read1(min(PIECE, most - len(found)))
        if not piece:
            break
        found += piece
        allowance.take(len(piece), where)
        allowance.seconds(where)
    if wanted is not None and len(found) < min(wanted, most):
        raise TemporaryHubError(f"{where}: it ends after {len(found):,} of {wanted:,} bytes")
    return bytes(found)
