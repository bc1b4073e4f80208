"""Finds the modules of this package where they lie, in a fraction of the time that Python takes.

Python asks four finders for each module, tries endings, and asks for the same file again and again.
Here a module's source is looked at once, and its compiled form is read. A module without one, and
those of others, are left to Python.
"""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, PathFinder, SourceFileLoader, cache_from_source
from _imp import _fix_co_filename, check_hash_based_pycs  # type: ignore[attr-defined]
from io import open_code
from marshal import loads
from os import stat, stat_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

PACKAGE = __name__.partition(".")[0] + "."
BELIEVED = MAGIC_NUMBER + b"\1\0\0\0"  # a compiled module starts so, if its source does not matter
DATED = MAGIC_NUMBER + bytes(4)  # and so if the time and the size of its source follow
HEADER = 16  # bytes before the code


class OwnLoader(SourceFileLoader):
    """Loads a module from its compiled form, if that is of the source as it is."""

    def __init__(self, name: str, source: str, compiled: str, found: stat_result) -> None:
        self.name, self.path, self.compiled = name, source, compiled
        numbers = int(found.st_mtime), found.st_size
        self.dated = DATED + b"".join([(n & 0xFFFF_FFFF).to_bytes(4, "little") for n in numbers])

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code."""
        try:
            with open_code(self.compiled) as file:
                data = file.read()
        except OSError:
            return super().get_code(fullname)
        if data[:HEADER] != self.dated and not data.startswith(BELIEVED):
            return super().get_code(fullname)
        code: CodeType = loads(memoryview(data)[HEADER:])
        _fix_co_filename(code, self.path)
        return code


class OwnFinder:
    """Finds the modules of this package whose source is a file. `ending`: of compiled modules."""

    def __init__(self, ending: str) -> None:
        self.ending = ending

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Where a module is, and what loads it."""
        if path is None or not name.startswith(PACKAGE):
            return None
        stem = name.rpartition(".")[2]
        return self._spec(name, path[0], stem) or self._spec(name, f"{path[0]}/{stem}", "__init__")

    def _spec(self, name: str, folder: str, stem: str) -> ModuleSpec | None:
        source = f"{folder}/{stem}.py"
        try:
            found = stat(source)
        except OSError:
            return None
        compiled = f"{folder}/__pycache__/{stem}{self.ending}"
        loader = OwnLoader(name, source, compiled, found)
        spec = ModuleSpec(name, loader, origin=source, is_package=stem == "__init__")
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(folder)
        spec.cached, spec.has_location = compiled, True
        return spec


def find_own_modules() -> None:
    """Let this process find them so, where compiled modules are beside their sources."""
    usual = sys.pycache_prefix is None and check_hash_based_pycs == "default"
    if usual and sys.implementation.cache_tag:
        finder = OwnFinder(cache_from_source("-.py").partition("-")[2])
        sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
