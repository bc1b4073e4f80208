"""Serving engines: one folder each, named as in a run file; its `engine.py` exposes `ENGINE`.

A folder is discovered by itself, and imported when its engine is used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ..run.engine import Engine

ALIASES = {
    "huggingface": "transformers", "hf": "transformers", "trtllm": "tensorrt_llm",
    "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llamacpp", "llama_cpp": "llamacpp",
    "text-generation-inference": "tgi",
}  # fmt: skip


@cache
def server_names() -> tuple[str, ...]:
    """Every engine's name."""
    return tuple(sorted(folder.name for folder in iter_modules(__path__) if folder.ispkg))


def spellings() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    return {**{name: name for name in server_names()}, **ALIASES}


@cache
def server(name: str) -> Engine:
    """One engine by its name."""
    found: Engine = import_module(f"{__name__}.{name}.engine").ENGINE
    return found


def servers() -> dict[str, Engine]:
    """Every engine."""
    return {name: server(name) for name in server_names()}
