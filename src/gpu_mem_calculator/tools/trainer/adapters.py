"""PEFT's LoraConfig as keys of a run file (peft 0.21.2 tuners/lora/config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..translation.arguments import argument_problems, argument_table, argument_values

TABLE = "trainer/peft"


def adapter_keys(peft: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`training.lora` for a LoraConfig, and its problems.

    peft 0.21.2 tuners/tuners_utils.py: adapters of 16-bit weights are cast to fp32
    (autocast_adapter_dtype).
    """
    table = argument_table(TABLE)
    problems = [
        sentence.replace("program.args.", "program.peft.")
        for sentence in argument_problems("PEFT's LoraConfig", table, peft)
    ]
    values = argument_values(table, peft)
    lora: dict[str, Any] = {"r": values["r"], "adapter_dtype": "fp32"}
    if values["target_modules"] is not None:
        lora["target_modules"] = values["target_modules"]
    if values["lora_dropout"]:
        lora["dropout"] = values["lora_dropout"]
    if values["use_dora"]:
        lora["dora"] = True
    return lora, problems
