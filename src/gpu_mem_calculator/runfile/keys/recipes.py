"""Recipes: the settings that people usually choose to train all weights, by LoRA or by QLoRA.

The sources are PEFT's `prepare_model_for_kbit_training` and the SFT scripts of TRL, which load the
base model in bf16 or nf4, keep adapters in fp32 under autocast, and recompute activations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...run.run import DEFAULT_OPTIMIZER
from ...training.engines import DEFAULT, engine_row
from ...training.optimizers import OPTIMIZERS

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
    "lora": {**_ADAPTERS, "training.optimizer": DEFAULT_OPTIMIZER},
    "qlora": {
        **_ADAPTERS,
        "training.quantization": "nf4",
        "training.double_quant": True,
        "training.upcast_unquantized": True,
        "training.optimizer": "paged_adamw_8bit",
    },
}
TITLES: Mapping[str, str] = {"full": "All weights", "lora": "LoRA", "qlora": "QLoRA"}
# What a recipe assumes, key by key, in words.
WORDS: Mapping[str, Mapping[Any, str]] = {
    "training.quantization": {"nf4": "an nf4 base"},
    "training.double_quant": {True: "double quantization"},
    "training.precision": {
        "bf16_pure": "bf16 compute",
        "bf16_mixed": "bf16 mixed precision",
        "fp16_pure": "fp16 compute, as the card has no bf16 units",
        "fp16_mixed": "fp16 mixed precision, as the card has no bf16 units",
    },
    "training.upcast_unquantized": {True: "norms, embedding and head in fp32"},
    "training.lora.target_modules": {"all-linear": "adapters on all linear layers"},
    "training.activation_checkpointing": {"full": "full checkpointing"},
    "training.optimizer": {name: row.title for name, row in OPTIMIZERS.items()},
}


def recipe_settings(
    name: str, r: int | None = None, engine: str = DEFAULT, dtype: str = "bf16"
) -> dict[str, Any]:
    """The keys of a run file, as `section.key`, that a recipe sets for an engine; `dtype` is the
    card's 16-bit one.
    """
    settings, own = RECIPES[name], engine_row(engine).recipe
    settings = {key: own.get(key, value) for key, value in settings.items()}
    if precision := settings.get("training.precision"):
        settings["training.precision"] = precision.replace("bf16", dtype)
    if r is not None and "training.lora.r" in settings:
        settings["training.lora.r"] = r
    return {key: value for key, value in settings.items() if value is not None}


def recipe_words(name: str, values: Mapping[str, Any], kept: Collection[str]) -> str:
    """What a recipe's values assume in one sentence; `kept` are the keys that nothing else sets."""
    words = [WORDS[key][values[key]] for key in WORDS if key in values and key in kept]
    return f"{TITLES[name]}: {', '.join(words)}"
