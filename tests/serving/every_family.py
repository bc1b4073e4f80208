"""A model of every family: its defaults, and what it has no default for."""

from __future__ import annotations

from functools import cache
from typing import Any

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families import families, read_config

NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6},
}
# these are nothing without a list of their blocks
NAMES = sorted(set(families()) - {"deci", "nemotron-nas"})


@cache
def family(name: str) -> Arch:
    """Read once."""
    return read_config({"model_type": name, **NEEDED.get(name, {})})
