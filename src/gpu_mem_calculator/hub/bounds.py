"""What goes wrong with a look-up, what it may take, and how addresses are told."""

from __future__ import annotations

import re
from threading import Event, Lock
from time import monotonic

from .access import Access, access, endpoint

# A name and a password in an address: up to the last @ before the path, or, where a password has
# a slash that should have been escaped, up to the last @ after what is not a port.
USERINFO = re.compile(r"(?:(?<=://)(?:[^/]*|[^/@:\[]*:(?!\d+/).*)|^[^/]*)@")
NO_LOGIN = "a name and a password in an address are not sent; leave them out"


class HubError(ValueError):
    """A file that cannot be read, in one sentence."""


class MissingFileError(HubError):
    """A file that is not there."""


class TemporaryHubError(HubError):
    """What may be otherwise in a moment; `wait` is how long a server wants to be left alone."""

    def __init__(self, sentence: str, wait: float = 0.0) -> None:
        super().__init__(sentence)
        self.wait = wait


class Allowance:
    """What one look-up may still take, all its requests together."""

    def __init__(self, limits: Access) -> None:
        self.until, self.size, self.limits = monotonic() + limits.seconds, limits.size, limits
        self._lock, self._over = Lock(), Event()

    def seconds(self, where: str) -> float:
        """Those that are left; none is a sentence."""
        left = self.until - monotonic()
        if left <= 0:
            raise HubError(f"{where}: it takes longer than {self.limits.seconds:g} seconds")
        return left

    def pause(self, seconds: float) -> None:
        """Wait so long, unless it is over before."""
        self._over.wait(seconds)

    def end(self) -> None:
        """Nothing more is wanted: whoever still asks is stopped."""
        self.until = 0.0
        self._over.set()

    def take(self, count: int, where: str) -> None:
        """So many bytes came; too many are a sentence."""
        with self._lock:
            self.size -= count
        if self.size < 0:
            raise HubError(f"{where}: its headers are larger than {self.limits.size:,} bytes")


def said(address: str) -> str:
    """An address in a sentence, without a name, a password or a query, which may be signed; where
    the hosts are limited, without the hub's address.
    """
    if access().hosts is not None:
        address = address.removeprefix(f"{endpoint()}/").replace("/resolve/main/", "/", 1)
    return USERINFO.sub("", address).partition("?")[0].partition("#")[0]
