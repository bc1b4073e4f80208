"""One file's bytes from a server: every address on the way is checked, and no other is asked.

The token goes to the hub alone, wherever the hub sends a request on to. Time is checked between
pieces of an answer, and each waits SECONDS at most; a name is looked up in the system's own time.
"""

from __future__ import annotations

import os
import re
import string
from functools import cache
from http.client import HTTPException
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

from .access import access, endpoint
from .bounds import AbsentError, Allowance, HubError, said
from .peer import CheckedHandler, CheckedTlsHandler, origin

SECONDS = 20
REDIRECTS = 10
MOVED = (301, 302, 303, 307, 308)
PIECE = 2**16
PLAIN_HOST = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.ASCII)
WHY = {
    401: "it needs a token: set HF_TOKEN",
    403: "its licence has to be accepted on the hub first",
    404: "there is no such file",
}
HIDDEN = "it is not there, or not open to this service"  # whoever asks here has no token to set


def get(address: str, headers: dict[str, str], most: int, allowance: Allowance) -> bytes:
    """The bytes behind an address, `most` of them at most."""
    where = said(address)
    try:
        for _ in range(REDIRECTS + 1):
            _check(address, where)
            with _answer(address, headers, allowance.seconds(where)) as answer:
                onward = answer.headers.get("Location") if answer.status in MOVED else None
                if onward is None:
                    return _body(answer, "Range" in headers, most, allowance, where)
            address = urljoin(address, quote(onward, string.punctuation, "iso-8859-1"))
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, HubError):
            raise
        reason = f", {getattr(error, 'reason', None) or error}" if access().hosts is None else ""
        raise HubError(f"{where}: cannot be reached{reason}") from None
    raise HubError(f"{where}: it is sent on more than {REDIRECTS} times")


def _check(address: str, where: str) -> None:
    """Raise a sentence for an address that may not be asked."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise HubError(f"{where}: its address begins with {parts.scheme!r}; https is read")
    if access().hosts is None:
        return
    if parts.scheme == "http" and urlsplit(endpoint()).scheme != "http":
        raise HubError(f"{where}: the hub sends it over plain http; https is read")
    plain = PLAIN_HOST.fullmatch(parts.netloc.lower()) is not None
    if not plain or not access().reaches(parts.hostname or ""):
        raise HubError(f"{where}: the hub has it on a host that this service may not ask")


def _answer(address: str, headers: dict[str, str], seconds: float) -> Any:
    """A server's answer, whatever it is."""
    token = _token() if origin(address) == origin(endpoint()) else {}
    request = Request(address, headers={**headers, **token})
    opener = _opener(access().hosts is not None, tuple(getproxies().items()))
    return opener.open(request, timeout=min(SECONDS, seconds))


def _token() -> dict[str, str]:
    """The header that HF_TOKEN makes, if it is set."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise HubError("HF_TOKEN has a character that no token has; set it anew")
    return {"Authorization": f"Bearer {token}"} if token else {}


@cache
def _opener(checked: bool, proxies: tuple[tuple[str, str], ...]) -> OpenerDirector:
    """What asks over http and https, and follows nothing by itself.

    A proxy that the environment names is used; it then looks the names up that may be asked.
    """
    opener = OpenerDirector()
    asking = (CheckedHandler(), CheckedTlsHandler()) if checked else (HTTPHandler(), HTTPSHandler())
    for handler in (ProxyHandler(dict(proxies)), *asking):
        opener.add_handler(handler)
    return opener


def _body(answer: Any, ranged: bool, most: int, allowance: Allowance, where: str) -> bytes:
    """An answer's bytes, or what its status means."""
    status = answer.status
    if not 200 <= status < 300:
        kind = AbsentError if status == 404 else HubError
        hidden = access().hosts is not None and status in WHY
        raise kind(f"{where}: {HIDDEN if hidden else WHY.get(status, f'HTTP {status}')}")
    if ranged and status != 206:
        raise HubError(f"{where}: the server sends whole files only; download its header")
    found = bytearray()
    while len(found) < most:
        piece = answer.read1(min(PIECE, most - len(found)))
        if not piece:
            break
        found += piece
        allowance.take(len(piece), where)
        allowance.seconds(where)
    return bytes(found)
