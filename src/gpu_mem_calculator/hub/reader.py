"""Bytes of a file a range at a time, and folders of files: on disk, or behind an address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from ..ledger.units import MIB
from .access import access
from .bounds import Allowance, HubError, MissingFileError, said

Read = Callable[[int, int], bytes]  # offset, how many; fewer come back at the end of the file
MOST_JSON = 64 * MIB  # a config or an index is smaller


class Folder(Protocol):
    """Files under one roof, wherever that is."""

    def whole(self, file: str) -> bytes:
        """A small file; AbsentError where it is not there."""

    def reader(self, file: str) -> Read:
        """Ranges of a file; it need not be there before it is read."""

    def where(self, file: str) -> str:
        """A file in a sentence."""

    def end(self) -> None:
        """Nothing more is wanted of it."""


def file_reader(path: Path) -> Read:
    """Ranges of a file on disk."""

    def read(offset: int, count: int) -> bytes:
        if not access().files:
            raise HubError("this service opens no files")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except FileNotFoundError:
            raise MissingFileError(f"{path}: there is no such file") from None
        except OSError as error:
            raise HubError(f"{path}: cannot be read, {error.strerror}") from None

    return read


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def whole(self, file: str) -> bytes:
        """A small file."""
        data = file_reader(self.path / file)(0, MOST_JSON + 1)
        if len(data) > MOST_JSON:
            raise HubError(f"{self.where(file)}: it is larger than {MOST_JSON:,} bytes")
        return data

    def reader(self, file: str) -> Read:
        """Ranges of a file."""
        return file_reader(self.path / file)

    def where(self, file: str) -> str:
        """Its path."""
        return str(self.path / file)

    def end(self) -> None:
        """A disk needs no word."""


class RemoteFolder:
    """A folder of a server, of whose files each range is a request of its own."""

    def __init__(self, address: str, allowance: Allowance, ending: str = "") -> None:
        self.address, self.allowance, self.ending = address, allowance, ending

    def _at(self, file: str) -> str:
        return f"{self.address}/{quote(file, '/%')}{self.ending}"

    def whole(self, file: str) -> bytes:
        """A small file."""
        from .request import get  # slow to load, and seldom needed

        return get(self._at(file), {}, MOST_JSON, self.allowance)

    def reader(self, file: str) -> Read:
        """Ranges of a file."""

        def read(offset: int, count: int) -> bytes:
            from .request import get

            asked = {"Range": f"bytes={offset}-{offset + count - 1}"}
            return get(self._at(file), asked, count, self.allowance)

        return read

    def where(self, file: str) -> str:
        """Its address."""
        return said(self._at(file))

    def end(self) -> None:
        """No further request, and no waiting for one."""
        self.allowance.end()
