"""Adapters and quantization of LLaMA-Factory as sections of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.reading import Limit, Reading, Section
from ..reading.trainer_arguments import lora_keys

BITSANDBYTES = "bnb"
BITS = (4, 8)


def adapter_sections(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """Add `peft` and `quantization` to a program; returns keys of `training` beside it."""
    if values["finetuning_type"] in ("lora", "oft"):
        program["peft"] = _lora(values)
    if values["quantization_bit"] is None:
        return {}
    if values["quantization_method"] != BITSANDBYTES:
        key = f"quantization_method={values['quantization_method']}"
        why = "only bitsandbytes is modelled; the estimate is of its format with as many bits"
        reading.limits.append(Limit(key=key, why=why, could="either"))
    program["quantization"] = _bitsandbytes(values)
    # PEFT's prepare_model_for_kbit_training is not called (model/loader.py)
    return {"upcast_unquantized": False}


def _lora(values: Mapping[str, Any]) -> Section:
    """LoraConfig; `all` are the linear modules but the head (model_utils/misc.py)."""
    lora = values["finetuning_type"] == "lora"
    target = values["lora_target"] if lora else "all"
    names = [name.strip() for name in target.split(",")] if isinstance(target, str) else target
    peft: Section = {
        "r": values["lora_rank"] if lora else 8,
        "target_modules": "all-linear" if names == ["all"] else names,
    }
    if lora and values["lora_dropout"]:
        peft["lora_dropout"] = values["lora_dropout"]
    if lora and values["use_dora"]:
        peft["use_dora"] = True
    return peft


def _bitsandbytes(values: Mapping[str, Any]) -> Section:
    """BitsAndBytesConfig (model_utils/quantization.py configure_quantization)."""
    bits = values["quantization_bit"]
    if bits not in BITS and values["quantization_method"] == BITSANDBYTES:
        raise InputError(f"quantization_bit={bits}: bitsandbytes has 4 and 8 bits; use one of them")
    if bits > 4:
        return {"load_in_8bit": True}
    half = values["fp16"] and not values["bf16"] and not values["pure_bf16"]
    compute = "float16" if half else "bfloat16"
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": values["quantization_type"],
        "bnb_4bit_use_double_quant": values["double_quantization"],
        "bnb_4bit_compute_dtype": compute,
        "bnb_4bit_quant_storage": compute,
    }


def training_lora(values: Mapping[str, Any]) -> Section:
    """Adapters as `training.lora` has them, in fp32 (model/adapter.py init_adapter)."""
    return lora_keys(_lora(values), "fp32")
