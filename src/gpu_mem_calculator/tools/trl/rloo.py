"""RLOOConfig as keys of a run file (trl 1.16.0 trainer/rloo_trainer.py)."""

from __future__ import annotations

from ...runfile.program import Program, Setup, Translation
from .online import policy_keys
from .trainer import Values


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of RLOOTrainer, which always asks the policy for its old log-probabilities
    (_generate_and_score_completions).
    """
    return policy_keys(program, values, setup, old_logprobs=True)
