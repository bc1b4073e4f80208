"""The Python files of a framework, in a wheel or in a folder; nothing is installed or imported."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from functools import cached_property
from pathlib import Path, PurePosixPath

from .definitions import Module


class Tree:
    """The Python files of one framework by path; a file is parsed when it is needed."""

    def __init__(self, location: Path, only: str = "") -> None:
        """`location`: a wheel or a folder; `only`: the one package of the folder to read."""
        self.location = location
        self._only = only
        self._modules: dict[str, Module] = {}

    @cached_property
    def texts(self) -> dict[str, str]:
        """The source of every Python file, by path relative to the wheel or the folder."""
        if self.location.is_dir():
            below = (self.location / self._only).rglob("*.py")
            read = (
                (path.relative_to(self.location).as_posix(), path.read_bytes()) for path in below
            )
            return {path: text.decode(errors="replace") for path, text in sorted(read)}
        with zipfile.ZipFile(self.location) as wheel:
            names = sorted(name for name in wheel.namelist() if name.endswith(".py"))
            return {name: wheel.read(name).decode(errors="replace") for name in names}

    def module(self, path: str) -> Module:
        """The definitions of a file; none where this Python cannot parse it."""
        if path not in self._modules:
            self._modules[path] = Module(self.texts[path])
        return self._modules[path]

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for path in self.texts:
            names[PurePosixPath(path).name].append(path)
        return names

    def ending_with(self, cited: str) -> list[str]:
        """The files that a cited path can mean: those that end with most of its folders.

        A citation may leave out or shorten the first folders (`F/_fsdp_param.py`). So they are
        dropped one after the other until a file ends with the rest: a folder of one letter
        always, others as long as one is left.
        """
        parts = PurePosixPath(cited).parts
        while len(parts) > 1 and len(parts[0]) == 1:
            parts = parts[1:]
        same_name = self._by_name.get(parts[-1], [])
        for first in range(max(1, len(parts) - 1)):
            ending = "/" + "/".join(parts[first:])
            if matches := [path for path in same_name if f"/{path}".endswith(ending)]:
                return sorted(matches, key=lambda path: (path.count("/"), path))
        return []
