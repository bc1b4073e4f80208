"""The page without a server: its requests are answered by Python in the browser.

The tasks are those of a calculating process, and so are the replies, byte for byte. No model is
looked up, and no file is read.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from urllib.parse import parse_qsl, unquote, urlsplit

from ..catalog.hub.access import Access, allow
from .addresses import CALCULATIONS, Address
from .worker import MOST_FETCHED, reply_or_refusal
from .worker_messages import TaskReply, TaskRequest, refusal

PRESET = "/api/preset/"
NO_PLANS = (
    "a plan needs numpy, which this page without a server does not bring: start the service with "
    "`gpu-mem-calc serve`, or use `gpu-mem-calc plan`"
)


def start() -> None:
    """Before the first request: nothing outside the page is read, as in a service by default."""
    allow(Access(files=False, hosts=frozenset(), seconds=0, size=MOST_FETCHED))


def reply(method: str, address: str, body: bytes) -> TaskReply:
    """The reply to a request of the page, whose address begins with /api/."""
    parts = urlsplit(address)
    path = unquote(parts.path)
    if method == "GET" and path.startswith(PRESET):
        from .facts import preset_reply  # what it imports would delay the first answer

        return preset_reply(path.removeprefix(PRESET))
    for route in CALCULATIONS:
        words = _words(route, path)
        if words is not None and method == route.method:
            return _calculation(route, words, parse_qsl(parts.query, True), body)
    return refusal(404, [f"there is no {method} {path[:200]}"])


def _words(route: Address, path: str) -> dict[str, str] | None:
    """The words of a path, if it is the route's."""
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path))
    found = re.fullmatch(pattern, path)
    return None if found is None else found.groupdict()


def _calculation(
    route: Address, words: dict[str, str], query: list[tuple[str, str]], body: bytes
) -> TaskReply:
    """The reply of a task."""
    if problem := route.refusal([name for name, _ in query]):
        return refusal(422, [problem])
    if route.task == "plan" and find_spec("numpy") is None:
        return refusal(501, [NO_PLANS])
    return reply_or_refusal(TaskRequest(route.task, body, {**dict(query), **words}))
