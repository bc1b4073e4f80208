"""A model of every family: its defaults, and what it has no default for."""

from __future__ import annotations

from functools import cache
from typing import Any

from gpu_mem_calculator.families import families, read_config
from gpu_mem_calculator.model.arch import Arch

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
