"""Engines by name: a folder is an engine, and its `engine.py` exposes `ENGINE`.

Its `__init__.py`, which is imported to read any name, has the other spellings and no imports.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine


@cache
def folder_names(package: str) -> tuple[str, ...]:
    """The names of a package's engines, which are its folders."""
    (path,) = sys.modules[package].__path__
    folders = (name for name in os.listdir(path) if "." not in name)
    return tuple(sorted(name for name in folders if _is_package(f"{path}/{name}")))


def _is_package(folder: str) -> bool:
    """Whether Python imports it, from its source or, in a browser, compiled."""
    return any(os.path.exists(f"{folder}/__init__.{ending}") for ending in ("py", "pyc"))


@cache
def folder_aliases(package: str) -> dict[str, str]:
    """Each engine's `ALIASES`: other spellings, and the engine that they mean."""
    return {
        alias: name
        for name in folder_names(package)
        for alias in import_module(f"{package}.{name}").ALIASES
    }


@cache
def folder_shorthands(package: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Each engine's `SHORTHANDS`: names that say options, too: the engine, and those options."""
    return {
        short: (name, options)
        for name in folder_names(package)
        for short, options in import_module(f"{package}.{name}").SHORTHANDS.items()
    }


@cache
def load_engine(package: str, name: str) -> Engine:
    """The engine of a folder, imported when it is first used."""
    engine: Engine = import_module(f"{package}.{name}.engine").ENGINE
    return engine
