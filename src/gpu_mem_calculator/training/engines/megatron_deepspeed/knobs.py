"""What is worth turning in a run of Megatron+DeepSpeed."""

from __future__ import annotations

from ....run.recompute import FULL, NONE
from ...knob import MOVES, RECOMPUTE, STAGES, TO_CPU, Knob, Offer, sizes

KNOBS = (
    *sizes("tensor", "pipeline"),
    STAGES,
    Knob(key="engine.offload_optimizer", values=("none", "cpu"), kind=MOVES, savings=(TO_CPU,)),
    Knob(key=RECOMPUTE, values=(NONE, FULL)),
)
OFFERS: tuple[Offer, ...] = ()
