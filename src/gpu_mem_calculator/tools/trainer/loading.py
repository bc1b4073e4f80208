"""The attention of from_pretrained, and what PEFT and bitsandbytes do to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.program import Program, Translation
from .adapters import adapter_keys
from .quantization import quantization_keys

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3")


def add_attention(load: Mapping[str, Any], result: Translation) -> None:
    """Add the attention; sdpa unless the program chooses another."""
    attention = load.get("attn_implementation", "sdpa")
    if attention in ATTENTION:
        result.training["attention"] = attention
    else:
        choice = " or ".join(map(repr, ATTENTION))
        result.problems.append(f"program.load.attn_implementation={attention!r} must be {choice}")


def add_adapters(program: Program, result: Translation, *, prepared: bool) -> None:
    """Add adapters and a quantized base.

    prepared: whether prepare_model_for_kbit_training is called for a quantized base
    """
    if program.peft is not None:
        result.training["lora"], problems = adapter_keys(program.peft)
        result.problems += problems
    if program.quantization is not None:
        keys, problems = quantization_keys(program.quantization, prepared=prepared)
        result.training |= keys
        result.problems += problems
