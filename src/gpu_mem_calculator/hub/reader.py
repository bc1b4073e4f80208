"""Bytes of a file, here or behind an address, a range at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from .access import Access, access, endpoint

Read = Callable[[int, int], bytes]  # offset, how many; fewer come back at the end of the file
MOST_JSON = 64 * 2**20  # a config or an index is smaller


class HubError(ValueError):
    """A file that cannot be read, in one sentence."""


class AbsentError(HubError):
    """A file that is not there."""


class Allowance:
    """What one look-up may still take, all its requests together."""

    def __init__(self, limits: Access) -> None:
        self.until, self.size, self.limits = monotonic() + limits.seconds, limits.size, limits

    def seconds(self, where: str) -> float:
        """Those that are left; none is a sentence."""
        left = self.until - monotonic()
        if left <= 0:
            raise HubError(f"{where}: it takes longer than {self.limits.seconds:g} seconds")
        return left

    def take(self, count: int, where: str) -> None:
        """So many bytes came; too many are a sentence."""
        self.size -= count
        if self.size < 0:
            raise HubError(f"{where}: its headers are larger than {self.limits.size:,} bytes")


def said(address: str) -> str:
    """An address in a sentence; whoever may not choose hosts is told of none."""
    if access().hosts is None:
        return address
    return address.removeprefix(f"{endpoint()}/").replace("/resolve/main/", "/", 1)


def file_reader(path: Path) -> Read:
    """Ranges of a file on disk."""

    def read(offset: int, count: int) -> bytes:
        if not access().files:
            raise HubError("this service opens no files")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except OSError as error:
            raise HubError(f"{path}: cannot be read, {error.strerror}") from None

    return read


def address_reader(address: str, allowance: Allowance) -> Read:
    """Ranges of a file on a server, each its own request."""

    def read(offset: int, count: int) -> bytes:
        from .request import get  # slow to load, and seldom needed

        asked = {"Range": f"bytes={offset}-{offset + count - 1}"}
        return get(address, asked, count, allowance)

    return read


def whole(address: str, allowance: Allowance) -> bytes:
    """A small file on a server."""
    from .request import get

    return get(address, {}, MOST_JSON, allowance)
