"""The arguments of LLaMA-Factory: its own and those of transformers' TrainingArguments."""

from __future__ import annotations

from pathlib import Path

from ..reading.trainer_arguments import OLDER, TRAINER
from ..translation.arguments import ArgumentTable, argument_data, argument_table

FOLDER = Path(__file__).parent
OWN_TABLE = argument_table("arguments", FOLDER)
TABLE: ArgumentTable = {**OLDER, **TRAINER, **OWN_TABLE}  # transformers 4.55 to 5.8 is accepted
BUNDLED = argument_data("deepspeed", FOLDER)  # the files of examples/deepspeed
# Own arguments with defaults that a training run depends on.
OWN = ("cutoff_len", "stage", "finetuning_type", "flash_attn", "use_reentrant_gc")
