"""Bytes of a file, here or behind an address, a range at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Read = Callable[[int, int], bytes]  # offset, how many; fewer come back at the end of the file
SECONDS = 20
MOST_JSON = 64 * 2**20  # a config or an index is smaller


class HubError(ValueError):
    """A file that cannot be read, in one sentence."""


def file_reader(path: Path) -> Read:
    """Ranges of a file on disk."""

    def read(offset: int, count: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except OSError as error:
            raise HubError(f"{path}: cannot be read, {error.strerror}") from None

    return read


def address_reader(address: str) -> Read:
    """Ranges of a file on a server, each its own request."""

    def read(offset: int, count: int) -> bytes:
        asked = {"Range": f"bytes={offset}-{offset + count - 1}"}
        return _get(address, asked, count)

    return read


def whole(address: str) -> bytes:
    """A small file on a server."""
    return _get(address, {}, MOST_JSON)


def _get(address: str, headers: dict[str, str], most: int) -> bytes:
    import urllib.error  # slow to load, and seldom needed
    import urllib.request

    token = os.environ.get("HF_TOKEN")
    if token:
        headers = {**headers, "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            if "Range" in headers and answer.status != 206:
                raise HubError(f"{address}: the server sends whole files only; download its header")
            found: bytes = answer.read(most)
            return found
    except urllib.error.HTTPError as error:
        why = {
            401: "it needs a token: set HF_TOKEN",
            403: "its licence has to be accepted on the hub first",
            404: "there is no such file",
        }.get(error.code, f"HTTP {error.code}")
        raise HubError(f"{address}: {why}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, HubError):
            raise
        reason = getattr(error, "reason", None) or error
        raise HubError(f"{address}: cannot be reached, {reason}") from None
