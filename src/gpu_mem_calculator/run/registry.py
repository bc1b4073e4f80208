"""Engines by name: the `engine.py` of a folder exposes `ENGINE`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .engine import Engine


@cache
def load_engine(package: str, name: str) -> Engine:
    """The engine of a folder, imported when it is first used."""
    engine: Engine = import_module(f"{package}.{name}.engine").ENGINE
    return engine
