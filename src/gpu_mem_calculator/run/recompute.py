"""What a run recomputes besides whole layers: which layers, operations or modules."""

from __future__ import annotations

from msgspec import Struct

# Policies: none, without the scores of attention, by operation (`keeps`), of whole layers.
NONE, SELECTIVE, BY_OPERATION, FULL = "none", "selective", "op", "full"
ATTENTION, EVERY_SECOND_MM = "attention", "every_second_mm"  # what `keeps` may have
MEGATRON = "Megatron"


class RecomputeRule(Struct, frozen=True, kw_only=True):
    """The details of `Run.recompute`; without them it applies to every layer.

    - every, first: full recompute of every n-th layer, and the index of the first one
    - first_layers: full recompute of the first layers of each model chunk; None: of all
    - layers_together: consecutive layers under one checkpoint
    - keeps: what recompute by operation keeps: ATTENTION, EVERY_SECOND_MM
    - modules: what selective recompute of Megatron recomputes, by Megatron's names
    - early_stop: recompute ends with the last tensor that backward needs
    - offload: full recompute keeps the inputs of layers in host RAM
    - framework: the one whose keys the run file has; "": a policy that all have
    """

    every: int = 1
    first: int = 0
    first_layers: int | None = None
    layers_together: int = 1
    keeps: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    early_stop: bool = True
    offload: bool = False
    framework: str = ""


EVERYTHING = RecomputeRule()
