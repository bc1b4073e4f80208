"""Serving engines: one folder each, named as in a run file; its `engine.py` exposes `ENGINE`.

A server takes a `Served` run and gives its memory: weights, cache, graphs, workspaces. A folder is
imported when its engine is used. Its `row.py` has what is true of the server beside its memory, as
`ROW`. It may import `training` and what is below; servers do not import each other.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ..run.registry import load_engine

if TYPE_CHECKING:
    from ..run.engine import Engine
    from ..run.server_row import ServerRow

USUAL, OF_GGUF = "vllm", "llamacpp"  # where no server is named: for checkpoints, and for GGUF files

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

# A program that starts a server of its own release: its title, the key of that, and the newest that
# is modelled.
STARTERS = {"ollama": ("Ollama", "ollama_version", "0.32.15")}


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


@cache
def server_row(name: str) -> ServerRow:
    """The row of a server, without its formulas."""
    row: ServerRow = import_module(f"{__name__}.{name}.row").ROW
    return row


def server_on(runtime: str) -> str:
    """A server that runs on a kind of card."""
    return USUAL if runtime in server_row(USUAL).runtimes else OF_GGUF


def serving_section(family: str) -> dict[str, str]:
    """An inference section whose server has a family: the usual one where that has it."""
    row = server_row(USUAL)
    if family in row.instead:
        return dict(row.instead[family])
    last = row.no_code.get(family)
    return {"engine": USUAL, **({"engine_version": last} if last else {})}


def other_server(family: str) -> str:
    """The server to use for a family that another one does not have, as a user writes it."""
    (_, name), *keys = serving_section(family).items()
    return " with ".join((repr(name), *(f"{key}={value!r}" for key, value in keys)))


def servers() -> dict[str, Engine]:
    """Every server by its name."""
    return {name: server(name) for name in server_names()}
