"""Training engines: one file each, exposing `ENGINE`. This page finds them by itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ..memory.engine import Engine


@cache
def engines() -> dict[str, Engine]:
    """Every engine by its name."""
    found = {}
    for module in iter_modules(__path__):
        engine = getattr(import_module(f"{__name__}.{module.name}"), "ENGINE", None)
        if engine is not None:
            found[engine.name] = engine
    return found


@cache
def engine_names() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    names = {name: name for name in engines()}
    for engine in engines().values():
        names |= dict.fromkeys(engine.aliases, engine.name)
    return names
