"""The releases of a package on the package index, and the files of one, without a download.

Of a large wheel only its directory and the files that are asked for are read, by requests for
ranges of bytes; a small one and a source archive are read as a whole. Nothing is kept.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urljoin
from urllib.request import Request, urlopen

INDEX = "https://pypi.org/pypi/{}/json"
FINAL = re.compile(r"\d+(?:\.\d+)*(?:\.?post\d+)?")  # neither a candidate nor of a development day
INSTALLED = re.compile(
    r"^[^/]+\.data/(?:purelib|platlib)/"
)  # a wheel's folders of what it installs
WHOLE = 4_000_000  # bytes of a file that is read as a whole
PIECE = 1 << 18  # bytes that are read ahead
TIMEOUT = 120


class ReleaseError(Exception):
    """A release cannot be read; the text is a sentence."""


class Release(NamedTuple):
    """A release: the day on which its first file was uploaded, and the file to read."""

    version: str
    date: str
    name: str
    url: str
    size: int


def version_key(version: str) -> tuple[tuple[int, ...], int]:
    """Orders versions: their numbers, then the number of the post-release."""
    main, _, post = version.partition("post")
    numbers = tuple(int(part) for part in re.findall(r"\d+", main))
    return numbers + (0,) * (6 - len(numbers)), int(post) + 1 if post else 0


def releases(package: str) -> list[Release]:
    """Every final release of a package that has a file, the oldest version first."""
    address = INDEX.format(package)
    found = []
    for version, files in json.loads(_get(address))["releases"].items():
        kinds = {"bdist_wheel": 0, "sdist": 1}
        known = [one for one in files if one["packagetype"] in kinds]
        if known and FINAL.fullmatch(version):
            date = min(one["upload_time"] for one in known)[:10]
            best = min(known, key=lambda one: (kinds[one["packagetype"]], one["size"]))
            url = urljoin(address, best["url"])
            found.append(Release(version, date, best["filename"], url, best["size"]))
    return sorted(found, key=lambda one: version_key(one.version))


class Files:
    """The files of a release by path: as they are installed, or below the archive's folder."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._texts: dict[str, str] = {}

    @cached_property
    def _archive(self) -> zipfile.ZipFile | Mapping[str, bytes]:
        release = self.release
        if release.name.endswith(".whl"):
            if release.size <= WHOLE:
                return zipfile.ZipFile(io.BytesIO(_get(release.url)))
            ranges = _Ranges(release.url, release.size)
            return zipfile.ZipFile(io.BufferedReader(ranges, PIECE))
        with tarfile.open(fileobj=io.BytesIO(_get(release.url))) as archive:
            opened = ((one.name, archive.extractfile(one)) for one in archive.getmembers())
            return {_below(name): file.read() for name, file in opened if file}

    @cached_property
    def names(self) -> frozenset[str]:
        """The paths of all files."""
        return frozenset(self._members)

    @cached_property
    def _members(self) -> dict[str, str]:
        """The members of the archive by the paths at which they are installed."""
        archive = self._archive
        found = archive.namelist() if isinstance(archive, zipfile.ZipFile) else list(archive)
        return {INSTALLED.sub("", name): name for name in found}

    def text(self, path: str) -> str:
        """The text of a file."""
        if path not in self._texts:
            archive = self._archive
            name = self._members[path]
            data = archive.read(name) if isinstance(archive, zipfile.ZipFile) else archive[name]
            self._texts[path] = data.decode(errors="replace")
        return self._texts[path]


def _below(path: str) -> str:
    """A path without the folder of the archive, and without `src/`."""
    return path.partition("/")[2].removeprefix("src/")


def _get(url: str, headers: Mapping[str, str] | None = None) -> bytes:
    with urlopen(Request(url, headers=dict(headers or {})), timeout=TIMEOUT) as answer:
        data: bytes = answer.read()
    return data


class _Ranges(io.RawIOBase):
    """A file at an address, of which only the bytes that are read are asked for."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._place = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = start + offset
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        last = min(self._size, self._place + len(buffer)) - 1
        if last < self._place:
            return 0
        data = _get(self._url, {"Range": f"bytes={self._place}-{last}"})
        if len(data) != last - self._place + 1:
            raise ReleaseError(f"{self._url} does not give ranges of bytes")
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def tagged(clone: str, tags: str) -> list[Release]:
    """The releases of a clone, the oldest first; `tags`: a pattern whose group is the version."""
    lines = _git(
        clone, "for-each-ref", "--format=%(refname:short) %(creatordate:short)", "refs/tags"
    )
    found = []
    for tag, date in (line.split() for line in lines.splitlines()):
        if match := re.fullmatch(tags, tag):
            found.append(Release(match[1], date, tag, clone, 0))
    return sorted(found, key=lambda one: version_key(one.version))


class TaggedFiles:
    """The files of a release in a clone, by path."""

    def __init__(self, release: Release) -> None:
        self.release = release

    @cached_property
    def names(self) -> frozenset[str]:
        """The paths of all files."""
        listed = _git(
            self.release.url, "ls-tree", "-r", "--name-only", f"refs/tags/{self.release.name}"
        )
        return frozenset(listed.splitlines())

    def text(self, path: str) -> str:
        """The text of a file."""
        return _git(self.release.url, "show", f"refs/tags/{self.release.name}:{path}")


def _git(clone: str, *arguments: str) -> str:
    command = ("git", "-C", clone, *arguments)
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode:
        raise ReleaseError(f"git {' '.join(arguments)}: {result.stderr.decode().strip()}")
    return result.stdout.decode(errors="replace")
