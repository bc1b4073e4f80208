"""Recipes: the settings that people usually choose to train all weights, by LoRA or by QLoRA.

The sources are PEFT's `prepare_model_for_kbit_training` and the SFT scripts of TRL, which load the
base model in bf16 or nf4, keep adapters in fp32 under autocast, and recompute activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_RANK = 16
# Keys of the run file by recipe; `training.lora.r` is set to the rank that is asked for.
_ADAPTERS: Mapping[str, Any] = {
    "training.lora.r": DEFAULT_RANK,
    "training.lora.target_modules": "all-linear",
    "training.precision": "bf16_pure",
    "training.autocast": True,
    "training.activation_checkpointing": "full",
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {**_ADAPTERS, "training.optimizer": "adamw"},
    "qlora": {
        **_ADAPTERS,
        "training.quantization": "nf4",
        "training.double_quant": True,
        "training.upcast_unquantized": True,
        "training.optimizer": "paged_adamw_8bit",
    },
}
# What an engine does in place of a recipe's value; None: the engine does not have the key.
BY_ENGINE: Mapping[str, Mapping[str, Any]] = {
    "fsdp": {"training.autocast": None, "training.optimizer": "adamw"},
    "deepspeed": {
        "training.autocast": None,
        "training.precision": "bf16_mixed",
        "training.optimizer": "adamw",
    },
}
TITLES: Mapping[str, str] = {"full": "All weights", "lora": "LoRA", "qlora": "QLoRA"}
# What each recipe assumes, in words.
WORDS: Mapping[str, str] = {
    "full": "every weight is trained",
    "lora": "a bf16 base under autocast, fp32 adapters on every linear layer, full checkpointing",
    "qlora": (
        "an nf4 base with double quantization, the rest in fp32, fp32 adapters on every linear "
        "layer, bf16 autocast, full checkpointing, paged 8-bit AdamW"
    ),
}


def recipe_settings(name: str, r: int | None = None, engine: str = "pytorch_ddp") -> dict[str, Any]:
    """The keys of a run file, as `section.key`, that a recipe sets for an engine."""
    settings = {**RECIPES[name], **_for_engine(name, engine)}
    if r is not None and "training.lora.r" in settings:
        settings["training.lora.r"] = r
    return {key: value for key, value in settings.items() if value is not None}


def _for_engine(name: str, engine: str) -> dict[str, Any]:
    """The values of a recipe that the engine replaces."""
    return {k: v for k, v in BY_ENGINE.get(engine, {}).items() if k in RECIPES[name]}
