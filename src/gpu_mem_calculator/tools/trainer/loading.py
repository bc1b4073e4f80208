"""The attention of from_pretrained, and what PEFT and bitsandbytes do to the model.

A base model quantized by bitsandbytes as keys of a run file.

transformers 5.17.0 utils/quantization_config.py BitsAndBytesConfig, and quantizers/quantizer_bnb_*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ledger.quoting import quoted
from ...runfile.program import Program, Translation
from ..translation.arguments import tables
from .adapters import adapter_keys
from .precision import dtype_word

# Every field, with its default.
FIELDS: Mapping[str, Any] = {
    "load_in_8bit": False,
    "load_in_4bit": False,
    "llm_int8_threshold": 6.0,
    "llm_int8_skip_modules": None,
    "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_has_fp16_weight": False,
    "bnb_4bit_compute_dtype": None,
    "bnb_4bit_quant_type": "fp4",
    "bnb_4bit_use_double_quant": False,
    "bnb_4bit_quant_storage": None,
}
# Fields whose other values are refused, and why.
REFUSED: dict[str, str] = tables(__file__)["refused"]
STORAGE = ("uint8", "bfloat16", "float16", "float32")
COMPUTE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def quantization_keys(
    quantization: Mapping[str, Any], *, prepared: bool
) -> tuple[dict[str, Any], list[str]]:
    """Our keys for a BitsAndBytesConfig, and its problems.

    prepared: whether PEFT's prepare_model_for_kbit_training upcasts what is not quantized.
    """
    problems = _problems(quantization)
    if problems:
        return {}, problems
    given = {**FIELDS, **quantization}
    common = {"upcast_unquantized": prepared}
    if given["load_in_8bit"]:
        return {"quantization": "int8", "int8_threshold": given["llm_int8_threshold"], **common}, []
    if not given["load_in_4bit"]:
        return {}, []
    # nf4 and fp4 differ in the 16 values of their code (functional.py get_4bit_type)
    compute = dtype_word(given["bnb_4bit_compute_dtype"] or "float32")
    return {
        "quantization": "nf4",
        "double_quant": bool(given["bnb_4bit_use_double_quant"]),
        "nf4_compute_dtype": COMPUTE[compute],
        **common,
    }, []


def _problems(quantization: Mapping[str, Any]) -> list[str]:
    """A sentence for each field that does not exist, or whose value is refused."""
    problems = []
    for name, value in quantization.items():
        setting = f"program.quantization.{name}={quoted(value)}"
        if name not in FIELDS:
            problems.append(f"program.quantization.{name} is not a field of BitsAndBytesConfig")
        elif name in REFUSED and value not in (FIELDS[name], []):
            problems.append(f"{setting}: {REFUSED[name]}; leave it out")
    given = {**FIELDS, **quantization}
    if given["load_in_8bit"] and given["load_in_4bit"]:
        problems.append("program.quantization has load_in_8bit and load_in_4bit; set one of them")
    problems += _choice(given, "bnb_4bit_quant_type", ("fp4", "nf4"))
    problems += _choice(given, "bnb_4bit_quant_storage", STORAGE)
    problems += _choice(given, "bnb_4bit_compute_dtype", tuple(COMPUTE))
    threshold = given["llm_int8_threshold"]
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold < 0:
        setting = f"program.quantization.llm_int8_threshold={quoted(threshold)}"
        problems.append(f"{setting} must be a number, 0 or more")
    return problems


def _choice(given: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> list[str]:
    value = given[name]
    if value is None or dtype_word(value) in choices:
        return []
    words = " or ".join(map(repr, choices))
    return [f"program.quantization.{name}={quoted(value)} must be {words}"]


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
