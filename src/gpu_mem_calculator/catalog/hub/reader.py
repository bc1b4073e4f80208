"""Folders of files, on disk or at an address, whose files are read by byte ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from ...ledger.units import MIB
from .access import access
from .bounds import Allowance, HubError, MissingFileError, printable_address

Read = Callable[[int, int], bytes]  # (offset, count) to bytes; fewer at the end of the file
MOST_JSON = 24 * MIB  # a config or an index is smaller


class Folder(Protocol):
    """A folder of files on disk, on a server or in a bucket."""

    def read_all(self, file: str) -> bytes:
        """All bytes of a small file; MissingFileError where it does not exist."""

    def reader(self, file: str) -> Read:
        """A reader of byte ranges; the file is opened at the first read."""

    def where(self, file: str) -> str:
        """The file's path or address, for messages."""

    def end(self) -> None:
        """Make no further request."""


def file_reader(path: Path) -> Read:
    """A reader of byte ranges of a file on disk."""

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

    def read_all(self, file: str) -> bytes:
        """All bytes of a file of at most MOST_JSON bytes."""
        data = file_reader(self.path / file)(0, MOST_JSON + 1)
        if len(data) > MOST_JSON:
            raise HubError(f"{self.where(file)}: it is larger than {MOST_JSON:,} bytes")
        return data

    def reader(self, file: str) -> Read:
        """A reader of byte ranges."""
        return file_reader(self.path / file)

    def where(self, file: str) -> str:
        """The file's path."""
        return str(self.path / file)

    def end(self) -> None:
        """Do nothing: a disk has no open requests."""


class RemoteFolder:
    """A folder of a server; each range of a file is one request."""

    def __init__(self, address: str, allowance: Allowance, ending: str = "") -> None:
        self.address, self.allowance, self.ending = address, allowance, ending

    def _url(self, file: str) -> str:
        return f"{self.address}/{quote(file, '/%')}{self.ending}"

    def read_all(self, file: str) -> bytes:
        """All bytes of a file of at most MOST_JSON bytes."""
        from .request import get  # slow to load, and seldom needed

        return get(self._url(file), {}, MOST_JSON, self.allowance)

    def reader(self, file: str) -> Read:
        """A reader of byte ranges."""

        def read(offset: int, count: int) -> bytes:
            from .request import get

            headers = {"Range": f"bytes={offset}-{offset + count - 1}"}
            return get(self._url(file), headers, count, self.allowance)

        return read

    def where(self, file: str) -> str:
        """The file's address, without secrets."""
        return printable_address(self._url(file))

    def end(self) -> None:
        """Make no further request, and stop waiting for one."""
        self.allowance.end()
