"""A base model quantized by bitsandbytes (BitsAndBytesConfig) as keys of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def quantization_keys(
    quantization: Mapping[str, Any], *, prepared: bool
) -> tuple[dict[str, Any], list[str]]:
    """Our keys for a BitsAndBytesConfig, and its problems.

    prepared: whether PEFT's prepare_model_for_kbit_training upcasts what is not quantized.
    """
    if quantization.get("load_in_8bit"):
        return {"quantization": "int8", "upcast_unquantized": prepared}, []
    if not quantization.get("load_in_4bit"):
        return {}, []
    double = bool(quantization.get("bnb_4bit_use_double_quant", False))
    return {"quantization": "nf4", "double_quant": double, "upcast_unquantized": prepared}, []
