"""The arguments of LLaMA-Factory: its own and those of transformers' TrainingArguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import quoted
from ...programs.translation.arguments import MEMORY, ArgumentTable, argument_table

FOLDER = Path(__file__).parent
TRAINER = argument_table("transformers/arguments")
OLDER = argument_table("transformers4", FOLDER)  # transformers 4.55 to 5.8 is accepted
OWN_TABLE = argument_table("arguments", FOLDER)
TABLE: ArgumentTable = {**OLDER, **TRAINER, **OWN_TABLE}
# Own arguments with defaults that a training run depends on.
OWN = ("cutoff_len", "stage", "finetuning_type", "flash_attn", "use_reentrant_gc")
SCALARS = (bool, int, float, str)


def trainer_args(values: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The given arguments of transformers' Trainer that change memory."""
    return {
        name: value
        for name, value in values.items()
        if name not in without and name in TRAINER and TRAINER[name].effect == MEMORY
    }


def type_problems(table: ArgumentTable, given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each value whose type is not that of the argument's default."""
    for name, value in given.items():
        default = table[name].default
        if value is None or not isinstance(default, SCALARS) or table[name].effect != MEMORY:
            continue
        fits = isinstance(value, type(default))
        if isinstance(default, bool):
            word = "true or false"
        elif isinstance(default, str):
            word = "a text"
            fits = isinstance(value, str | list)
        else:
            word = "a number"
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits:
            yield f"{name}={quoted(value)} must be {word}"
