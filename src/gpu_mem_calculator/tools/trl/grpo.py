"""GRPOConfig as keys of a run file (trl 1.16.0 trainer/grpo_trainer.py)."""

from __future__ import annotations

from ...runfile.program import Program, Setup, Translation
from .online import policy_keys, updates_per_generation
from .trainer import Values


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of GRPOTrainer.

    The old policy's log-probabilities are computed where a generation outlives the step that
    follows it, and always for completions of vLLM (_generate_and_score_completions).
    """
    every = updates_per_generation(values, setup) * values["num_iterations"]
    corrected = values["use_vllm"] and values["vllm_importance_sampling_correction"]
    needed = bool(values["gradient_accumulation_steps"] % every) or corrected
    return policy_keys(program, values, setup, old_logprobs=needed)
