"""Whose recipe --lora and --qlora are, and what other tools need for the same settings."""

from __future__ import annotations

from ..advice.training.other_tools import other_tools
from ..estimates.calculator import Estimate
from ..runfile.resolve.training_rules import quantized_experts_note
from .lines import gib

PAGE = "docs/qlora.md"
RECIPE = "as transformers.Trainer"
PREPARED = f"{RECIPE} with PEFT's prepare_model_for_kbit_training"


def recipe_notes(estimate: Estimate) -> tuple[str, ...]:
    """Whose recipe a run of adapters is, and what the card must have for the others', margin
    included; then what of the base is not quantized. Empty for a run without adapters.
    """
    run = estimate.resolved.run
    if run.adapter is None:
        return ()
    whose = PREPARED if run.upcast_unquantized else f"{RECIPE} with PEFT"
    others = ", ".join(f"{one.title} {gib(one.total_bytes)}" for one in other_tools(estimate))
    sentence = f"{whose}; {others} GiB: {PAGE}" if others else f"{whose}: {PAGE}"
    return (sentence, *quantized_experts_note(run))
