"""Quantization that an option names and a checkpoint must have: a name that does not say so."""

from __future__ import annotations

import re
from typing import Any

from ...runfile.text.errors import quoted
from .reading import Limit, Reading

# What names of quantized checkpoints contain.
HINTS = re.compile(
    r"awq|gptq|fp8|fp4|int4|int8|w4a|w8a|quant|[48]-?bit|gguf|bnb|mxfp|auto-?round|gpt-oss", re.I
)


def add_checkpoint_limit(reading: Reading, method: Any, model: str) -> None:
    """A limit where --quantization names a checkpoint's format, and the model's name does not."""
    if method is not None and not HINTS.search(model):
        why = "says that the checkpoint is quantized; weights are counted as config.json has them"
        key = f"--quantization={quoted(method)}"
        reading.limits.append(Limit(key=key, why=why, could="less"))
