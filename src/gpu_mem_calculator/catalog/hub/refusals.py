"""The meaning of a server's refusal, and what to do about it, in one sentence.

The hub names its reasons in X-Error-Code (huggingface_hub 1.33, utils/_http.py).
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

from .access import access, endpoint
from .bounds import HubError, MissingFileError, TemporaryHubError
from .environment import token
from .peer import origin

TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
MOST_WAIT = 30.0  # the longest wait in seconds that a server may ask for
# Refusals of the hub: the sentence without a token, and with one.
HUBS: dict[str, tuple[str, str]] = {
    "GatedRepo": (
        "it is gated: accept its terms on its page, and set HF_TOKEN to a token of that account",
        "it is gated, and the account of {} has no access: accept its terms on its page",
    ),
    "RepoNotFound": (
        "there is no such model, or it is private: check the name, or set HF_TOKEN",
        "there is no such model, or the account of {} may not read it: check the name",
    ),
    "RevisionNotFound": ("it has no such branch, tag or commit",) * 2,
    "DisabledRepo": ("the hub has closed it to everybody",) * 2,
    "401": (
        "it needs a token: set HF_TOKEN",
        "the hub does not take the token of {}: it is wrong or no longer good; make a new one",
    ),
    "403": ("it is not open to all: set HF_TOKEN", "the account of {} may not read it"),
}
OTHERS = {
    401: "it wants a login",
    403: "it is not open to all",
    404: "there is no such file",
    410: "it is gone",
}
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
    return kind(f"{where}: {OTHERS.get(status, f'HTTP {status}')}{hint}")


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
