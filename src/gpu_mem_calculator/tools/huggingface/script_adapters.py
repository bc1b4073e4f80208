"""Adapters and quantization that a script asks for."""

from __future__ import annotations

from typing import Any

from ..reading.keys import sort_keys
from ..reading.reading import Reading
from ..script.values import Thing, plain
from ..trainer.adapters import TABLE as PEFT
from ..translation.arguments import argument_table
from .script_rows import freed, honoured, limited

Section = dict[str, Any]
COMPUTED = "the script computes it when it runs"


def quantize(quantization: Thing, reading: Reading) -> Section:
    """BitsAndBytesConfig: the fields that the text shows."""
    hidden = [key for key, value in quantization.values.items() if not plain(value)]
    shown = {key: value for key, value in quantization.values.items() if plain(value)}
    honoured(reading, quantization.line, "BitsAndBytesConfig")
    for key in shown:
        honoured(
            reading, quantization.lines.get(key, quantization.line), f"BitsAndBytesConfig({key})"
        )
    for key in hidden:
        line, what = quantization.lines.get(key, quantization.line), f"BitsAndBytesConfig({key})"
        limited(reading, line, what, f"{COMPUTED}, so the default is taken")
    return {key: value for key, value in shown.items() if value is not None}


def peft_section(peft: Any, trainer: Thing | None, reading: Reading) -> Section | None:
    """LoraConfig; other methods are named. None where nothing is adapted, or it is not shown."""
    if peft is None:
        return None
    if not isinstance(peft, Thing) or peft.kind != "peft":
        line = trainer.line if trainer is not None else 0
        limited(reading, line, "peft_config", "the adapter's configuration is not shown")
        return None
    if peft.name != "LoraConfig":
        why = "only LoRA is modelled, and LoRA of rank 8 is estimated"
        limited(reading, peft.line, peft.name, why)
        return {}
    honoured(reading, peft.line, "LoraConfig")
    table, kept = argument_table(PEFT), Section()
    for key, value in peft.values.items():
        if key == "target_modules" and isinstance(value, list) and _linear(value):
            value = "all-linear"
        line = peft.lines.get(key, peft.line)
        word = "r" if key == "[0]" else key
        if word not in table:
            limited(reading, line, f"LoraConfig({word})", "not understood")
        elif plain(value):
            prefix = f"{reading.script}:{line} LoraConfig."
            kept |= sort_keys(reading, table, {word: _listed(value)}, prefix)
        elif table[word].effect == "free":
            freed(reading, line, f"LoraConfig({word})")
        else:
            why = f"{COMPUTED}, so the default is taken"
            limited(reading, line, f"LoraConfig({word})", why)
    return kept


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _linear(value: list[Any]) -> bool:
    """Whether a list has the names of all linear layers, as a loop over modules gathers them."""
    return bool(value) and all(isinstance(one, Thing) and one.kind == "linear" for one in value)
