"""How from_pretrained loads a model: its dtype and attention, PEFT's adapters, a quantized base.

transformers 5.17.0 modeling_utils.py, utils/quantization_config.py BitsAndBytesConfig,
quantizers/quantizer_bnb_*; peft 0.21.2 tuners/lora/config.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from msgspec.structs import replace

from ...ledger.quoting import quoted
from ...run.limits import Limit
from ...runfile.program import Program, Section, Setup, Translation
from ..translation.arguments import (
    REFUSED,
    Values,
    argument_problems,
    argument_table,
    argument_values,
    filled,
)
from ..translation.at_release import before
from ..translation.releases import order

UNMASKED_FROM = "5.18"
UNMASKED = Limit(
    key="transformers",
    why="experts that are not spread over ranks keep no masked copies since 5.18, which is not "
    "modelled (integrations/moe.py grouped_mm_experts_forward)",
    could="less",
    saves="activations",
)
PEFT = "trainer/peft"
LORA_NAMES = (None, "LORA", "LoraConfig")  # left out, PEFT's own name, the class
BITSANDBYTES = argument_table("trainer/bitsandbytes")
LOAD_KEYS = ("dtype", "torch_dtype", "attn_implementation", "device_map", "trust_remote_code")
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3")
MIXED = {"": "fp32", "bf16": "bf16_mixed", "fp16": "fp16_mixed"}  # of weights in float32
PURE = {"bfloat16": "bf16_pure", "float16": "fp16_pure"}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
STORAGE = ("uint8", "bfloat16", "float16", "float32")
COMPUTE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def load_dtype(load: Section, setup: Setup, result: Translation, *more: str) -> str:
    """The dtype of the weights unless given: "auto", the checkpoint's own; before transformers 5
    torch's default, float32 (4.57.1 modeling_utils.py from_pretrained).

    more: arguments that a tool reads beside those of from_pretrained
    """
    name_strangers(result, "load", load, (*LOAD_KEYS, *more))
    release = setup.releases.get("transformers", "")
    if order(release) >= order(UNMASKED_FROM) and setup.model().shape.get("moe_enabled"):
        result.limits.append(replace(UNMASKED, key=f"transformers {release}"))
    usual = "float32" if before(setup.releases, "transformers", "5.0") else "auto"
    dtype = load.get("dtype", load.get("torch_dtype"))
    if dtype is None:
        dtype = usual
        if usual != "auto":
            release = setup.releases["transformers"]
            result.assumed.append(f"program.load.dtype={usual}, as transformers {release} loads")
    if dtype == "auto":
        stored = setup.model().stored_dtype
        dtype, source = stored or "bfloat16", "as the checkpoint says"
        source = source if stored else "as most checkpoints have it"
        result.assumed.append(f"program.load.dtype={dtype}, {source}")
    return dtype_word(dtype)


def name_strangers(
    result: Translation, section: str, given: Iterable[str], known: Container[str]
) -> None:
    """Add a problem for each key of a section that is not read."""
    for key in given:
        if key not in known:
            result.problems.append(f"program.{section}.{key} is not read; leave it out")


def add_keys(result: Translation, keys: Section | str) -> None:
    """Add keys of `training`, or the sentence that says why there are none."""
    if isinstance(keys, str):
        result.problems.append(keys)
    else:
        result.training |= keys


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
        return {"precision": MIXED[mixed]}
    if dtype not in PURE:
        return f"program.load.dtype={dtype!r} must be 'float32', 'bfloat16' or 'float16'"
    if not mixed:
        return {"precision": PURE[dtype]}
    if COMPUTE[dtype] != mixed:
        fix = f"use {COMPUTE[dtype]}=true, or load the weights in float32"
        return f"program.args.{mixed}=true with weights in {dtype} is not modelled; {fix}"
    if mixed == "fp16" and not adapters:
        error = "torch's gradient scaler refuses gradients in float16"
        return f"program.args.fp16=true: {error}; load the weights in float32"
    return {"precision": PURE[dtype], "autocast": True}


def add_attention(load: Values, result: Translation) -> None:
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


def adapter_keys(peft: Values) -> tuple[dict[str, Any], list[str]]:
    """`training.lora` for a LoraConfig, and its problems.

    peft 0.21.2 tuners/tuners_utils.py: adapters of 16-bit weights are cast to fp32
    (autocast_adapter_dtype).
    """
    method = peft.get("peft_type")
    if method not in LORA_NAMES:
        rule = "of PEFT's methods LoRA is modelled, and DoRA by use_dora; use LoraConfig"
        return {}, [f"program.peft.peft_type={quoted(method)}: {rule}"]
    table = argument_table(PEFT)
    problems = [
        sentence.replace("program.args.", "program.peft.")
        for sentence in argument_problems("PEFT's LoraConfig", table, peft)
    ]
    values = argument_values(table, peft)
    lora: dict[str, Any] = {"r": values["r"], "adapter_dtype": "fp32"}
    if values["target_modules"] is not None:
        lora["target_modules"] = values["target_modules"]
    lora |= filled(dropout=values["lora_dropout"], dora=bool(values["use_dora"]))
    return lora, problems


def quantization_keys(quantization: Values, *, prepared: bool) -> tuple[dict[str, Any], list[str]]:
    """Our keys for a BitsAndBytesConfig, and its problems.

    prepared: whether PEFT's prepare_model_for_kbit_training upcasts what is not quantized.
    """
    problems = _problems(quantization)
    if problems:
        return {}, problems
    given = argument_values(BITSANDBYTES, quantization)
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


def _problems(quantization: Values) -> list[str]:
    """A sentence for each field that does not exist, or whose value is refused."""
    problems = []
    for name, value in quantization.items():
        row = BITSANDBYTES.get(name)
        if row is None:
            problems.append(f"program.quantization.{name} is not a field of BitsAndBytesConfig")
        elif row.effect == REFUSED and value not in (row.default, []):
            setting = f"program.quantization.{name}={quoted(value)}"
            problems.append(f"{setting}: {row.why}; leave it out")
    given = argument_values(BITSANDBYTES, quantization)
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


def _choice(given: Values, name: str, choices: tuple[str, ...]) -> list[str]:
    value = given[name]
    if value is None or dtype_word(value) in choices:
        return []
    words = " or ".join(map(repr, choices))
    return [f"program.quantization.{name}={quoted(value)} must be {words}"]
