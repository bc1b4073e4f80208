"""Puts into a wheel what is made of its sources: the replay in C, and tables as they are kept.

Hatchling runs it for every wheel, for one that only refers to a checkout (`pip install -e`), too.
The library needs no header of Python, and any Python reads the kept tables: a wheel is for a
platform, and for every Python. Where there is no compiler, it is for every platform.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class MadeFiles(BuildHookInterface):
    """Keeps tables beside the source, and compiles there for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files are collected."""
        source = Path(self.root) / "src"
        kept = runpy.run_path(str(source / "gpu_mem_calculator" / "catalog" / "kept.py"))
        made = {table: Path(table).relative_to(source) for table in kept["keep_tables"]()}
        build = runpy.run_path(str(Path(self.root) / "native" / "build.py"), run_name="build")
        library: Path = build["LIBRARY"]
        target = library
        if version != "editable":
            self.folder = tempfile.TemporaryDirectory()
            target = Path(self.folder.name) / library.name
        if build["compile_library"](target):
            made[str(target)] = library.relative_to(source)
            if version != "editable":
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{_platform()}"
        else:
            self.app.display_warning("no library could be built: the replay runs in Python")
        if version != "editable":
            inside = {path: place.as_posix() for path, place in made.items()}
            build_data["force_include"].update(inside)


def _platform() -> str:
    """This platform's own name, not one that promises more, such as manylinux."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
