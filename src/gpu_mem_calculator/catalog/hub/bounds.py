"""Errors and limits of a look-up, and how addresses are written in messages."""

from __future__ import annotations

import re
from time import monotonic

from .access import Access, access, endpoint

# A name and a password in an address: up to the last @ before the path, or, where a password has
# a slash that should have been escaped, up to the last @ after what is not a port.
USERINFO = r"(?:(?<=://)(?:[^/]*|[^/@:\[]*:(?!\d+/).*)|^[^/]*)@"
NO_LOGIN = "a name and a password in an address are not sent; leave them out"


class HubError(ValueError):
    """A file that cannot be read, in one sentence."""


class MissingFileError(HubError):
    """A file that does not exist."""


class TemporaryHubError(HubError):
    """An error that may be gone at the next try; `wait`: seconds that the server asks to wait."""

    def __init__(self, sentence: str, wait: float = 0.0) -> None:
        super().__init__(sentence)
        self.wait = wait


class Allowance:
    """The seconds and bytes that the requests of one look-up may still take together."""

    def __init__(self, limits: Access) -> None:
        from threading import Event, Lock

        self.until, self.size, self.limits = monotonic() + limits.seconds, limits.size, limits
        self._lock, self._over = Lock(), Event()

    def seconds(self, where: str) -> float:
        """The seconds that are left; a HubError where there are none."""
        left = self.until - monotonic()
        if left <= 0:
            raise HubError(f"{where}: it takes longer than {self.limits.seconds:g} seconds")
        return left

    def pause(self, seconds: float) -> None:
        """Wait, or return early when the look-up ends."""
        self._over.wait(seconds)

    def end(self) -> None:
        """End the look-up: every further request fails."""
        self.until = 0.0
        self._over.set()

    def take(self, count: int, where: str) -> None:
        """Count received bytes; a HubError where they are too many."""
        with self._lock:
            self.size -= count
        if self.size < 0:
            raise HubError(f"{where}: its headers are larger than {self.limits.size:,} bytes")


def printable_address(address: str) -> str:
    """An address for messages: without name, password and query, which may be signed.

    Where hosts are limited, the hub's own address is left out too.
    """
    if access().hosts is not None:
        address = address.removeprefix(f"{endpoint()}/").replace("/resolve/main/", "/", 1)
    return re.sub(USERINFO, "", address).partition("?")[0].partition("#")[0]
