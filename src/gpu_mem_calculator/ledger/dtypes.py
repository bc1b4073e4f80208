"""Bits per element of every number format the calculator knows."""

from __future__ import annotations

BITS = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "nf4": 4}

DTYPE_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}


def dtype_name(text: str) -> str:
    """The calculator's name of a dtype, from any common spelling."""
    key = text.lower().removeprefix("torch.")
    return DTYPE_ALIASES.get(key, key)
