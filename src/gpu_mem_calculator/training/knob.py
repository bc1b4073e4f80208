"""Knobs of a training engine: keys of a run file that are worth turning, and what that costs.

The `knobs.py` of an engine's folder has them as `KNOBS`, and as `OFFERS` what the engine offers to
runs of other engines. Plans try every value; remedies and changes try what saves memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ..run.recompute import FULL, NONE
from .losses import TRANSFORMERS, planned_losses

RECOMPUTE, POLICY = "training.activation_checkpointing", "training.recompute"
IMPLEMENTATION, LOSS = "training.optimizer_implementation", "training.loss"
SEQUENCE = "parallelism.sequence_parallel"
# Kinds of savings: states are sharded over data-parallel ranks, or moved to the host; all of them
# are, which changes the training; layers are recomputed.
SHARDS, MOVES, MOVES_ALL, RECOMPUTES = "shards", "moves", "moves all", "recomputes"
# Runs to which an engine is offered: on several GPUs, on one, of an engine with layers of its own.
ON_SEVERAL, ON_ONE, OF_OWN_LAYERS = "on several GPUs", "on one GPU", "of own layers"
COMMUNICATES, CPU_STEP = "more communication", "slower optimizer step"
SHARDED = "shards model states across GPUs; more communication"


class Saving(Struct, frozen=True):
    """A value of a knob that saves memory where the run has one of those `before` it.

    - title, cost, weight: as a candidate's (advice/training/change_candidates.py)
    - also: settings that come with it; needs: options that the run must have for it
    """

    value: Any
    title: str
    before: tuple[Any, ...]
    cost: str = ""
    weight: int = 1
    also: Mapping[str, Any] = {}
    needs: Mapping[str, Any] = {}


class Knob(Struct, frozen=True, kw_only=True):
    """A key of a run file that an engine has.

    - values: those that plans try; none for a size, whose values follow from the model and the GPUs
    - kind: of its savings
    - also: settings that plans make with it where it is on
    - words: where it is on, as people say it, and in short for tables
    - of_experts: of models with experts alone
    """

    key: str
    values: tuple[Any, ...] = ()
    kind: str = ""
    savings: tuple[Saving, ...] = ()
    also: Mapping[str, Any] = {}
    words: tuple[str, str] = ("", "")
    of_experts: bool = False


class Offer(Struct, frozen=True):
    """An engine with some options, for runs of others; title, cost, weight: as a candidate's."""

    to: str
    title: str
    options: Mapping[str, Any]
    cost: str
    weight: int


def sizes(*axes: str) -> tuple[Knob, ...]:
    """The knobs of parallelism along some axes."""
    return tuple(Knob(key=f"parallelism.{axis}_parallel_size") for axis in axes)


# Of engines that run transformers' layers. A plan leaves out an implementation that the optimizer
# does not have.
STEPS = Knob(key=IMPLEMENTATION, values=("foreach", "fused"))
LAYERS = (
    Knob(key=RECOMPUTE, values=(NONE, FULL)),
    Knob(key=LOSS, values=planned_losses(TRANSFORMERS)),
)
ON_HOST = Saving(
    "full_offloaded", "full recompute, inputs on CPU", (FULL,), "slower forward and backward", 2
)
# ZeRO's knobs, of every engine that has it.
STAGES = Knob(
    key="engine.zero_stage",
    values=(0, 1, 2, 3),
    kind=SHARDS,
    savings=(
        Saving(1, "ZeRO-1", (0,)),
        Saving(2, "ZeRO-2", (0, 1), weight=2),
        Saving(3, "ZeRO-3", (0, 1, 2), COMMUNICATES, 2),
    ),
)
TO_CPU = Saving("cpu", "optimizer to CPU", ("none",), CPU_STEP, 2)
