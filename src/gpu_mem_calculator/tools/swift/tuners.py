"""Adapters and quantization of ms-swift as sections of a program (arguments/tuner_args.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.option_values import DTYPES
from ..reading.reading import Limit, Reading, Section
from ..reading.trainer_arguments import lora_keys

BITS = (4, 8)


def tuner_sections(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """Add `peft` and `quantization` to a program; returns keys of `training` beside it."""
    kind: str = values["tuner_type"]
    training: Section = {}
    if kind != "full":
        if kind != "lora":
            why = "this tuner is not modelled; the estimate is of LoRA with the rank and targets"
            reading.limits.append(Limit(key=f"tuner_type={kind}", why=why, could="either"))
        program["peft"] = _lora(values)
        if values["lora_dtype"]:
            training["lora"] = training_lora(values)
    if values["quant_method"] or values["quant_bits"]:
        quantization = _bitsandbytes(reading, values)
        if quantization:
            program["quantization"] = quantization
            training["upcast_unquantized"] = False
    return training


def training_lora(values: Mapping[str, Any]) -> Section:
    """Adapters as `training.lora` has them; fp32 unless lora_dtype says otherwise."""
    return lora_keys(_lora(values), DTYPES.get(str(values["lora_dtype"]), "fp32"))


def _lora(values: Mapping[str, Any]) -> Section:
    """LoraConfig (pipelines/train/tuner.py prepare_adapter)."""
    names = values["target_modules"]
    names = [names] if isinstance(names, str) else list(names or ["all-linear"])
    plain = [name for name in names if not name.startswith("all-")]
    peft: Section = {
        "r": values["lora_rank"],
        "target_modules": "all-linear" if "all-linear" in names or not plain else plain,
    }
    if values["lora_dropout"]:
        peft["lora_dropout"] = values["lora_dropout"]
    if values.get("use_dora"):
        peft["use_dora"] = True
    return peft


def _bitsandbytes(reading: Reading, values: Mapping[str, Any]) -> Section | None:
    """BitsAndBytesConfig (arguments/base_args/quant_args.py)."""
    method, bits = values["quant_method"], values["quant_bits"]
    if method not in (None, "bnb"):
        why = "only bitsandbytes is modelled; the estimate is of its format with as many bits"
        reading.limits.append(Limit(key=f"quant_method={method}", why=why, could="either"))
    elif bits not in BITS:
        raise InputError(f"quant_bits={bits}: bitsandbytes has 4 and 8 bits; use one of them")
    if not isinstance(bits, int) or bits > 4:
        return {"load_in_8bit": True} if bits == 8 else None
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": values["bnb_4bit_quant_type"],
        "bnb_4bit_use_double_quant": values["bnb_4bit_use_double_quant"],
        "bnb_4bit_compute_dtype": values["bnb_4bit_compute_dtype"] or values["torch_dtype"],
    }
