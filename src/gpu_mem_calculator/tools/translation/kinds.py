"""Whether the values of a program's arguments are of the kind that its tool takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...ledger.quoting import quoted
from ...runfile.program import Program
from .arguments import MEMORY, ArgumentTable

OBJECTS = ("_kwargs", "_config")  # ends of names of arguments that are objects
# Arguments without a default that are whole numbers.
WHOLE = (
    *("generation_batch_size", "steps_per_generation", "precompute_ref_batch_size"),
    *("vllm_max_model_length", "eval_accumulation_steps"),
)
# Whole numbers that are 1 or more.
COUNTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "pad_to_multiple_of"),
    *("max_length", "max_completion_length", "num_iterations", "steps_per_generation"),
    "generation_batch_size",
)
TEXTS = ("optim", "packing_strategy", "truncation_mode", "vllm_mode", "eval_strategy")
FLAGS = ("bf16", "completion_only_loss")
DATA = ("seq_len", "prompt", "eval_seq_len", "eval_batches")  # whole numbers of `data`


def kind_problems(table: ArgumentTable, program: Program) -> Iterator[str]:
    """A sentence for each value of another kind than its argument's."""
    for name, value in program.args.items():
        row = table.get(name)
        if row is None or row.effect != MEMORY:
            continue
        kind = _kind(name, row.default)
        needed = kind == "a whole number" and row.default is not None and name != "max_length"
        if value is None and not needed:
            continue
        if kind and not _is(kind, value):
            yield f"program.args.{name}={quoted(value)} must be {kind}"
        elif name in COUNTS and isinstance(value, int) and value < 1:
            yield f"program.args.{name}={quoted(value)} must be 1 or more"
    for name in DATA:
        value = program.data.get(name)
        if value is not None and not _is("a whole number", value):
            yield f"program.data.{name}={quoted(value)} must be a whole number"


def _kind(name: str, default: Any) -> str:
    """What a value must be; empty where the tool takes several kinds."""
    if name.endswith(OBJECTS):
        return "an object"
    if isinstance(default, bool) or name in FLAGS:
        return "true or false"
    if name in TEXTS:
        return "a text"
    if isinstance(default, int) or name in WHOLE:
        return "a whole number"
    return "a number" if isinstance(default, float) else ""


def _is(kind: str, value: Any) -> bool:
    if kind == "an object":
        return isinstance(value, Mapping)
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "a text":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == "a whole number":
        return isinstance(value, int) and 0 <= value < 10**12
    return math.isfinite(value)
