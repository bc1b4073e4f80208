"""Training engines: one folder each, named as in a run file; its `engine.py` exposes `ENGINE`.

A folder is imported when its engine is used.
"""

from __future__ import annotations

from functools import cache

from ..run.engine import Engine
from ..run.registry import load_engine

NAMES = ("deepspeed", "fsdp", "megatron_deepspeed", "megatron_lm", "pytorch_ddp")

ALIASES = {
    "pytorch": "pytorch_ddp",
    "ddp": "pytorch_ddp",
    "megatron": "megatron_lm",
    "megatron-lm": "megatron_lm",
    "megatron-deepspeed": "megatron_deepspeed",
}


def engine_names() -> tuple[str, ...]:
    """Every engine's name, as in a run file."""
    return NAMES


@cache
def spellings() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    return {**{name: name for name in engine_names()}, **ALIASES}


def engine(name: str) -> Engine:
    """One engine by its name."""
    return load_engine(__name__, name)


def engines() -> dict[str, Engine]:
    """Every engine by its name."""
    return {name: engine(name) for name in engine_names()}
