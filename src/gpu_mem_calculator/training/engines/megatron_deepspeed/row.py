"""Megatron+DeepSpeed's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....run.engine_row import MEGATRON_2, ZERO, EngineRow
from ..megatron_lm.row import ROW as MEGATRON


def title_of(keys: Mapping[str, Any]) -> tuple[str, str]:
    """The ZeRO stage, where the run has one."""
    stage = f" ZeRO-{keys['zero_stage']}" if "zero_stage" in keys else ""
    return f"Megatron+DeepSpeed{stage}", f"Megatron+DeepSpeed{stage}"


ROW = EngineRow(
    title_of=title_of,
    margin=0.020,
    no_job="the fork is no package: its own script runs it",
    layers=MEGATRON_2,
    ranks=ZERO,
    precision=MEGATRON.precision,
    apart=frozenset({"tp"}),
    runtimes=MEGATRON.runtimes,
    interval="Megatron-DeepSpeed",
)
