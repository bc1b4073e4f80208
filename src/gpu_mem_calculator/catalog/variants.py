"""Presets under another publisher's name or in another weight format, recognized by their name."""

from __future__ import annotations

from functools import cache
from typing import Any

from . import Row, find, rows


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
ENDINGS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("-unsloth-bnb-4bit", NF4, "NF4"),
    ("-bnb-4bit", NF4, "NF4"),
    ("-gptq-int4", _gptq(4), "GPTQ in 4 bits, groups of 128"),
    ("-gptq-int8", _gptq(8), "GPTQ in 8 bits, groups of 128"),
    ("-awq-int4", AWQ, "AWQ in 4 bits, groups of 128"),
    ("-awq", AWQ, "AWQ in 4 bits, groups of 128"),
    ("-fp8-dynamic", _channels(8, "float", dynamic=True), "FP8, a scale for each row"),
    ("-quantized.w8a8", _channels(8, "int", dynamic=True), "INT8, a scale for each row"),
    ("-quantized.w4a16", _groups(4), "INT4, groups of 128"),
    ("-quantized.w8a16", _groups(8), "INT8, groups of 128"),
)
FP8_OF = {"qwen": BLOCK_FP8, "deepseek-ai": BLOCK_FP8, "minimaxai": BLOCK_FP8}


@cache
def _by_last_word() -> dict[str, str]:
    """The preset of each last part of a hub id that only one preset has."""
    presets: dict[str, set[str]] = {}
    for row in rows("index"):
        for name in (row.get("hub_id") or "", *row.get("aliases", ())):
            if "/" in name:
                presets.setdefault(name.lower().rpartition("/")[2], set()).add(row["name"])
    return {word: names.pop() for word, names in presets.items() if len(names) == 1}


def same_name(name: str) -> Row | None:
    """The row of the preset with this hub id, or with its last part under another publisher."""
    row = find("index", name)
    word = _by_last_word().get(name.lower().rpartition("/")[2])
    return row if row is not None else find("index", word) if word else None


def variant(name: str) -> tuple[Row, dict[str, Any] | None, str] | None:
    """A preset's row, the quantization_config that the name's ending means, and that in words.

    None where the name is not of a preset; no quantization_config where it has no such ending.
    """
    if "/" not in name:
        return None
    lower = name.lower()
    publisher = lower.partition("/")[0]
    endings = ENDINGS
    if publisher in FP8_OF:
        endings = (*ENDINGS, ("-fp8", FP8_OF[publisher], "FP8, a scale for 128 x 128"))
    for ending, config, words in endings:
        if lower.endswith(ending):
            row = same_name(name[: -len(ending)])
            return None if row is None else (row, config, words)
    row = same_name(name)
    return None if row is None else (row, None, "")
