"""Adapters and a quantized base.

Axolotl 067b021 loaders/adapter.py, loaders/model.py (_set_quantization_config,
_configure_embedding_dtypes), utils/schemas/config.py (check_auto_enable_lora_kernels).
"""

from __future__ import annotations

from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.reading import Section
from ..translation.arguments import filled, tables
from .draft import Draft, Limits, flag

LORA, QLORA = "lora", "qlora"
FUSED = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
LIMITS: Limits = tables(__file__)["limits"]


def add_adapters(draft: Draft) -> None:
    """Add PEFT's and bitsandbytes' arguments."""
    adapter = draft.get("adapter")
    if not adapter:
        for key in ("load_in_4bit", "load_in_8bit"):
            if draft.flag(key):
                fix = "add adapter: qlora or lora"
                raise InputError(f"{key}=true needs an adapter in Axolotl; {fix}")
        return
    if adapter not in (LORA, QLORA):
        draft.limit("adapter", *LIMITS["adapter"])
    if adapter == QLORA and not draft.flag("load_in_4bit"):
        raise InputError("adapter=qlora needs load_in_4bit: true in Axolotl")
    draft.peft = _lora(draft)
    draft.quantization = _quantization(draft, str(adapter))
    if draft.quantization:
        draft.training["upcast_unquantized"] = False
    _add_kernels(draft)


def _lora(draft: Draft) -> Section:
    """LoraConfig's arguments (_build_peft_lora_config)."""
    rank = draft.whole("lora_r")
    if rank is None:
        raise InputError("lora_r is missing; an adapter needs its rank, such as lora_r: 16")
    peft: Section = {"r": rank, "lora_alpha": draft.get("lora_alpha") or 8}
    peft |= filled(
        target_modules=_targets(draft),
        lora_dropout=draft.number("lora_dropout"),
        use_dora=draft.flag("peft_use_dora"),
        use_rslora=draft.flag("peft_use_rslora"),
    )
    upcast = "peft_autocast_adapter_dtype"
    if draft.get(upcast) is not None and not draft.flag(upcast):
        draft.limit(upcast, *LIMITS[upcast], value=False)
    return peft


def _targets(draft: Draft) -> Any:
    """The modules with an adapter: all linear layers but the head, or those of the file."""
    given = draft.get("lora_target_modules")
    if draft.flag("lora_target_linear"):
        return "all-linear"
    if given is None or given in ([], ""):
        if "lora_target_parameters" in draft.reading.keys:
            return None
        fix = "add lora_target_linear: true, or a list of lora_target_modules"
        raise InputError(f"an adapter of Axolotl needs the modules that it adapts; {fix}")
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        rule = "must be a list of names or a pattern"
        raise InputError(f"lora_target_modules={quoted(given)} {rule}")
    return list(dict.fromkeys(given))


def _quantization(draft: Draft, adapter: str) -> Section | None:
    """BitsAndBytesConfig's arguments; LoRA with load_in_4bit is not quantized."""
    if adapter == QLORA:
        config: Section = {
            "load_in_4bit": True,
            "bnb_4bit_compute_dtype": draft.load["dtype"],
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_quant_storage": "bfloat16",
        }
        return config | dict(draft.section("bnb_config_kwargs"))
    if adapter == LORA and draft.flag("load_in_8bit"):
        return {"load_in_8bit": True}
    if draft.flag("load_in_4bit"):
        draft.assume("load_in_4bit has no effect with adapter: lora; qlora quantizes")
    return None


def _add_kernels(draft: Draft) -> None:
    """Name the fused kernels, which are on by default with LoRA and QLoRA since 0.9.1; before 0.16
    where lora_dropout is given as 0 (schemas/config.py check_auto_enable_lora_kernels).
    """
    given = {key: draft.get(key) for key in FUSED if draft.get(key) is not None}
    if given:
        on = [key for key, value in given.items() if flag(value, key)]
        if on:
            draft.limit(on[0], *LIMITS["fused"])
        return
    zero = "lora_dropout" in draft.reading.keys and draft.get("lora_dropout") == 0
    if draft.at.before("0.9.1") or (draft.at.before("0.16") and not zero):
        return
    eight = draft.get("adapter") == LORA and draft.flag("load_in_8bit")
    sharded = draft.get("fsdp_config") and str(draft.get("fsdp_version")) != "2"
    if draft.get("rl") or eight or draft.flag("trust_remote_code") or sharded:
        return
    draft.limit(FUSED[0], *LIMITS["fused by default"], value=True)
