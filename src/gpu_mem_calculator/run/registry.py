"""Engines by name: a folder whose `engine.py` exposes `ENGINE` is discovered by itself."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from .engine import Engine


def folder_names(path: Iterable[str]) -> tuple[str, ...]:
    """The folders of a package, sorted; `path` is the package's `__path__`."""
    return tuple(sorted(folder.name for folder in iter_modules(path) if folder.ispkg))


@cache
def load_engine(package: str, name: str) -> Engine:
    """The engine of a folder, imported when it is first used."""
    engine: Engine = import_module(f"{package}.{name}.engine").ENGINE
    return engine
