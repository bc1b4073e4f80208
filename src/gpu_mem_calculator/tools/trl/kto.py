"""KTOConfig as keys of a run file (trl 1.16.0 trainer/kto_trainer.py)."""

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
    """The keys of KTOTrainer: one answer for each prompt, and a reference model. The model and the
    reference also run on answers to other prompts, one pass at a time and without autograd
    (_compute_kl_logps), which needs no more than their other passes.
    """
    result = trainer_keys(program, values, setup)
    length = sequence_length(program, values)
    set_length(result, length)
    set_labels(result, completion_tokens(program, values, length))
    reference_keys(program, values, result)
    return result
