"""Serving engines: one folder each, named as in a run file; its `engine.py` exposes `ENGINE`.

A folder is imported when its engine is used.
"""

from __future__ import annotations

from functools import cache

from ..run.engine import Engine
from ..run.registry import load_engine

NAMES = ("llamacpp", "sglang", "tensorrt_llm", "tgi", "transformers", "vllm")

ALIASES = {
    "huggingface": "transformers",
    "hf": "transformers",
    "trtllm": "tensorrt_llm",
    "trt-llm": "tensorrt_llm",
    "tensorrt": "tensorrt_llm",
    "tensorrt-llm": "tensorrt_llm",
    "llama.cpp": "llamacpp",
    "llama_cpp": "llamacpp",
    "llama-cpp": "llamacpp",
    "ollama": "llamacpp",  # it runs llama.cpp's server
    "text-generation-inference": "tgi",
}


def server_names() -> tuple[str, ...]:
    """Every server's name, as in a run file."""
    return NAMES


@cache
def spellings() -> dict[str, str]:
    """Every spelling people use, and the server it means."""
    return {**{name: name for name in server_names()}, **ALIASES}


def server(name: str) -> Engine:
    """One server by its name."""
    return load_engine(__name__, name)


def servers() -> dict[str, Engine]:
    """Every server by its name."""
    return {name: server(name) for name in server_names()}
