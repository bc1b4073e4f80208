"""The precision of a run, from the dtype of the weights and the tool's mixed precision."""

from __future__ import annotations

from typing import Any

MIXED = {"float32": {"": "fp32", "bf16": "bf16_mixed", "fp16": "fp16_mixed"}}
PURE = {"bfloat16": "bf16_pure", "float16": "fp16_pure"}
SAME = {"bfloat16": "bf16", "float16": "fp16"}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


def dtype_word(value: Any) -> str:
    """torch's name of a dtype: torch.bfloat16 and bf16 are bfloat16."""
    word = str(value).removeprefix("torch.").lower()
    return SHORT.get(word, word)


def precision_keys(dtype: str, mixed: str, *, adapters: bool) -> dict[str, Any] | str:
    """Our keys for weights of a dtype under mixed precision ("", bf16 or fp16), or a sentence.

    accelerate 1.15.0 accelerator.py, prepare_model: the forward pass runs under autocast of the
    mixed precision, whatever the dtype of the weights.
    """
    if dtype == "float32":
        return {"precision": MIXED[dtype][mixed]}
    if dtype not in PURE:
        return f"program.load.dtype={dtype!r} must be 'float32', 'bfloat16' or 'float16'"
    if not mixed:
        return {"precision": PURE[dtype]}
    if SAME[dtype] != mixed:
        fix = f"use {SAME[dtype]}=true, or load the weights in float32"
        return f"program.args.{mixed}=true with weights in {dtype} is not modelled; {fix}"
    if mixed == "fp16" and not adapters:
        error = "torch's gradient scaler refuses gradients in float16"
        return f"program.args.fp16=true: {error}; load the weights in float32"
    return {"precision": PURE[dtype], "autocast": True}
