"""Runs to write, and how they are read back."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.runfile.config import RunFile
from gpu_mem_calculator.runfile.read import as_dict
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.writing.writers import write_run
from gpu_mem_calculator.tools.writing.written import Written

Data = dict[str, Any]
LLAMA: Data = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def run_file(engine: Data | None = None, gpus: int = 1, **training: Any) -> Data:
    """A run of a small Llama."""
    data = {"batch_size": 2, "gradient_accumulation_steps": 4, "seq_len": 64, **training}
    sections: Data = {"model": {"config": LLAMA}, "training": data}
    return {**sections, "engine": engine or {}, "hardware": {"num_gpus": gpus}}


def resolved(data: Data) -> tuple[RunFile, ResolvedRun]:
    """A run file, read and resolved."""
    file = read(data).file
    return file, resolve(file)


def written(name: str, data: Data, output: str | None = None) -> Written:
    """A run in a format."""
    return write_run(name, *resolved(data), output=output)


def plain(data: Data) -> Data:
    """A run file with a program as one without: the keys that the program means."""
    sections: Data = as_dict(read(data).file)
    sections.pop("program", None)
    return sections
