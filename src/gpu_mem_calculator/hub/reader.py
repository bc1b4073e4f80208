"""Bytes of a file, here or behind an address, a range at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .access import access
from .bounds import Allowance, HubError

Read = Callable[[int, int], bytes]  # offset, how many; fewer come back at the end of the file
MOST_JSON = 64 * 2**20  # a config or an index is smaller


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
