"""Training engines: one file each, named as in a run file, exposing `ENGINE`.

A file is found by itself, and loaded when its engine is asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from ..memory.engine import Engine

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
    files = Path(__file__).parent.glob("*.py")
    return tuple(sorted(file.stem for file in files if file.stem != "__init__"))


@cache
def spellings() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    return {**{name: name for name in engine_names()}, **ALIASES}


@cache
def engine(name: str) -> Engine:
    """One engine by its name."""
    found: Engine = import_module(f"{__name__}.{name}").ENGINE
    return found


def engines() -> dict[str, Engine]:
    """Every engine."""
    return {name: engine(name) for name in engine_names()}
