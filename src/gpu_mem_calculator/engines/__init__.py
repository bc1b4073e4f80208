"""Training engines: one folder each, named as in a run file; its `engine.py` exposes `ENGINE`.

A folder is discovered by itself, and imported when its engine is used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ..run.engine import Engine

ALIASES = {
    "pytorch": "pytorch_ddp",
    "ddp": "pytorch_ddp",
    "megatron": "megatron_lm",
    "megatron-lm": "megatron_lm",
    "megatron-deepspeed": "megatron_deepspeed",
}


@cache
def engine_names() -> tuple[str, ...]:
    """Every engine's name."""
    return tuple(sorted(folder.name for folder in iter_modules(__path__) if folder.ispkg))


@cache
def spellings() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    return {**{name: name for name in engine_names()}, **ALIASES}


@cache
def engine(name: str) -> Engine:
    """One engine by its name."""
    found: Engine = import_module(f"{__name__}.{name}.engine").ENGINE
    return found


def engines() -> dict[str, Engine]:
    """Every engine."""
    return {name: engine(name) for name in engine_names()}
