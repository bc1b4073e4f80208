"""Sizes of parallelism under Megatron's names, for tools on top of Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import lcm
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..translation.arguments import tables
from .reading import Reading, Section

SIZES: dict[str, str] = tables(__file__)["sizes"]
LOSSES = {"native": "megatron_fused", "te": "te_fused"}
OFF = (None, 1, False)
AXES = {**SIZES, "sequence_parallel": "sequence_parallel"}


def parallelism(values: Mapping[str, Any]) -> Section:
    """The `parallelism` section, without what is 1 or off."""
    given = {key: values[name] for key, name in AXES.items()}
    return {key: value for key, value in given.items() if value is True or value not in OFF}


def fused_loss(values: Mapping[str, Any]) -> Section:
    """The key of `training` for a fused cross entropy; none without one."""
    if not values["cross_entropy_loss_fusion"]:
        return {}
    name = values.get("cross_entropy_fusion_impl", "native")
    if name not in LOSSES:
        raise InputError(f"cross_entropy_fusion_impl={quoted(name)} must be native or te")
    return {"loss": LOSSES[name]}


def engine(values: Mapping[str, Any], options: Iterable[str]) -> Section:
    """The `engine` section; `options` have the same names there, where they are not None."""
    optimizer = {"distributed_optimizer": bool(values["use_distributed_optimizer"])}
    given = {name: values[name] for name in options if values[name] is not None}
    return {"type": "megatron_lm", **optimizer, **given}


def fewest_gpus(reading: Reading, values: Mapping[str, Any], expert_tensor: int) -> int:
    """The fewest GPUs on which the sizes of parallelism fit, without data parallelism.

    `expert_tensor`: ranks that share an expert.
    """
    dense = values["tensor_model_parallel_size"] * values["context_parallel_size"]
    experts = values["expert_model_parallel_size"] * expert_tensor
    count: int = values["pipeline_model_parallel_size"] * lcm(dense, experts)
    reading.assumed.append(f"{count} GPUs, the fewest for these sizes of parallelism")
    return count
