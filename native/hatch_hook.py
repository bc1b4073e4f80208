"""Puts the replay in C into a wheel, where there is a compiler; without one the wheel is pure.

Hatchling runs it for every wheel, for one that only refers to a checkout (`pip install -e`), too.
The library needs no header of Python: a wheel is for a platform, and for every Python.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class ReplayHook(BuildHookInterface):
    """Compiles the library: in place for an editable install, else into the wheel alone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files are collected."""
        build = runpy.run_path(str(Path(self.root) / "native" / "build.py"), run_name="build")
        library: Path = build["LIBRARY"]
        if version == "editable":
            target = library
        else:
            self.folder = tempfile.TemporaryDirectory()
            target = Path(self.folder.name) / library.name
        if not build["compile_library"](target):
            self.app.display_warning("no library could be built: the replay runs in Python")
        elif version != "editable":
            inside = library.relative_to(Path(self.root) / "src")
            build_data["force_include"][str(target)] = inside.as_posix()
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """This platform's own name, not one that promises more, such as manylinux."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
