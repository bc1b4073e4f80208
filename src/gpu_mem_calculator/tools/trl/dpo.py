"""DPOConfig as keys of a run file (trl 1.16.0 trainer/dpo_trainer.py)."""

from __future__ import annotations

from ...runfile.program import Program, Setup, Translation
from .trainer import (
    Values,
    completion_tokens,
    reference_keys,
    sequence_length,
    set_labels,
    set_length,
    trainer_keys,
)


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of DPOTrainer: chosen and rejected answers are one batch of twice the size
    (DataCollatorForPreference), and a reference model runs after the trained one.
    """
    result = trainer_keys(program, values, setup)
    result.training["batch_size"] *= 2
    length = sequence_length(program, values)
    set_length(result, length)
    set_labels(result, completion_tokens(program, values, length))
    reference_keys(program, values, result)
    return result
