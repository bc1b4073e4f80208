"""Presets under another publisher's name or in another weight format, recognized by their name."""

from __future__ import annotations

from typing import Any

from . import Row
from .model_names import spelled


def _channels(bits: int, kind: str, *, dynamic: bool) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one scale for each row of a weight."""
    weights = {"num_bits": bits, "type": kind, "strategy": "channel", "symmetric": True}
    inputs = {"num_bits": bits, "type": kind, "strategy": "token", "dynamic": dynamic}
    form = "float-quantized" if kind == "float" else "int-quantized"
    return _compressed(form, {"weights": weights, "input_activations": inputs})


def _groups(bits: int) -> dict[str, Any]:
    """A quantization_config of compressed-tensors: weights only, one scale for 128 of them."""
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 128}
    return _compressed("pack-quantized", {"weights": {**weights, "symmetric": True}})


def _compressed(form: str, group: dict[str, Any]) -> dict[str, Any]:
    """A quantization_config of compressed-tensors for all linears but the head."""
    groups = {"group_0": {"targets": ["Linear"], **group}}
    method = {"quant_method": "compressed-tensors", "format": form}
    return {**method, "ignore": ["lm_head"], "config_groups": groups}


BLOCK_FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
}


def _gptq(bits: int) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 128, "desc_act": False, "sym": True}


# The end of a name (lower case), its usual quantization_config, and that in words; longer ends
# come first.
ENDINGS: tuple[tuple[str, dict[str, Any] | None, str], ...] = (
    ("-unsloth-bnb-4bit", NF4, "NF4"),
    ("-bnb-4bit", NF4, "NF4"),
    ("-gptq-int4", _gptq(4), "GPTQ in 4 bits, groups of 128"),
    ("-gptq-int8", _gptq(8), "GPTQ in 8 bits, groups of 128"),
    ("-gptq", _gptq(4), "GPTQ in 4 bits, groups of 128"),
    ("-awq-int4", AWQ, "AWQ in 4 bits, groups of 128"),
    ("-awq", AWQ, "AWQ in 4 bits, groups of 128"),
    ("-fp8-dynamic", _channels(8, "float", dynamic=True), "FP8, a scale for each row"),
    ("-quantized.w8a8", _channels(8, "int", dynamic=True), "INT8, a scale for each row"),
    ("-quantized.w4a16", _groups(4), "INT4, groups of 128"),
    ("-quantized.w8a16", _groups(8), "INT8, groups of 128"),
    ("-gguf", None, ""),  # files of several formats: inference.quantization says which
)
BLOCK_FP8_OF = ("qwen", "deepseek-ai", "minimaxai")  # publishers, of a model or of its copy


def variant(name: str) -> tuple[Row, dict[str, Any] | None, str] | None:
    """A preset's row, the quantization_config that the name's ending means, and that in words.

    None where the name is not of a preset; no quantization_config where it has no such ending.
    """
    lower = name.lower()
    for ending, config, words in ENDINGS:
        if lower.endswith(ending):
            row = spelled(name[: -len(ending)])
            return None if row is None else (row, config, words)
    row = spelled(name)
    if row is None and lower.endswith("-fp8"):
        row = spelled(name[:-4])
        return None if row is None else (row, *_fp8(lower, row))
    return None if row is None else (row, None, "")


def _fp8(name: str, row: Row) -> tuple[dict[str, Any], str]:
    """The usual FP8 format of a publisher."""
    publishers = (name.partition("/")[0], (row.get("hub_id") or "").lower().partition("/")[0])
    if publishers[0 if "/" in name else 1] in BLOCK_FP8_OF:
        return BLOCK_FP8, "FP8, a scale for 128 x 128"
    return _channels(8, "float", dynamic=True), "FP8, a scale for each row"
