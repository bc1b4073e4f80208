"""The stages of LLaMA-Factory: which program each is, and where it differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.reading import Limit, Reading, Section
from .adapters import training_lora

PLAIN = "transformers.Trainer"
STAGES: Mapping[str, str] = {
    "pt": PLAIN,
    "sft": PLAIN,
    "dpo": "trl.DPOTrainer",
    "kto": "trl.KTOTrainer",
    "rm": "trl.RewardTrainer",
}
LOGITS = (
    "log-probabilities come from all logits in fp32, of the model and of its reference; "
    "the estimate is TRL's, which computes them in tiles"
)
VALUES = (
    "the model with a value head also computes all logits, and keeps every hidden state; "
    "the estimate has a score alone"
)
NO_REFERENCE = ("orpo", "simpo")


def stage_run(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """Complete a program by its stage; returns keys of `training` beside it."""
    stage, args = values["stage"], program["args"]
    if STAGES[stage] == PLAIN:
        if "peft" in program:
            program["peft"]["task_type"] = "CAUSAL_LM"
        return {}
    why = VALUES if stage == "rm" else LOGITS
    reading.limits.append(Limit(key=f"stage={stage}", why=why, could="more"))
    args |= {"max_length": program["data"]["seq_len"], "bf16": bool(values["bf16"])}
    if values["enable_liger_kernel"] and stage == "rm":
        args["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    training: Section = {}
    if stage == "dpo" and values["pref_loss"] in NO_REFERENCE:
        training["reference_model"] = False
    if "peft" in program and "quantization" in program:  # TRL would cast these adapters to bf16
        training["lora"] = training_lora(values)
    return training
