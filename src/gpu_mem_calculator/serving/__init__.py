"""Serving engines: one file each, named as in a run file, exposing `ENGINE`.

A file is found by itself, and loaded when its engine is asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from ..memory.engine import Engine

ALIASES = {
    "huggingface": "transformers", "hf": "transformers", "trtllm": "tensorrt_llm",
    "tensorrt-llm": "tensorrt_llm", "llama.cpp": "llamacpp", "llama_cpp": "llamacpp",
    "text-generation-inference": "tgi",
}  # fmt: skip


@cache
def server_names() -> tuple[str, ...]:
    """Every engine's name."""
    files = Path(__file__).parent.glob("*.py")
    return tuple(sorted(file.stem for file in files if file.stem != "__init__"))


def spellings() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    return {**{name: name for name in server_names()}, **ALIASES}


@cache
def server(name: str) -> Engine:
    """One engine by its name."""
    found: Engine = import_module(f"{__name__}.{name}").ENGINE
    return found


def servers() -> dict[str, Engine]:
    """Every engine."""
    return {name: server(name) for name in server_names()}
