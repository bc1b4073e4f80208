"""What is worth turning in a run of DeepSpeed, and what DeepSpeed offers to others."""

from __future__ import annotations

from ...knob import (
    COMMUNICATES,
    CPU_STEP,
    LAYERS,
    MOVES,
    OF_OWN_LAYERS,
    ON_ONE,
    ON_SEVERAL,
    STAGES,
    TO_CPU,
    Knob,
    Offer,
    Saving,
    sizes,
)

ALL_TO_CPU = Saving(
    "cpu",
    "optimizer and weights to CPU",
    ("none",),
    "slower forward, backward and optimizer step",
    3,
    also={"engine.offload_param": "cpu"},
    needs={"zero_stage": 3},
)
KNOBS = (
    *sizes("pipeline"),
    STAGES,
    Knob(
        key="engine.offload_optimizer",
        values=("none", "cpu"),
        kind=MOVES,
        savings=(TO_CPU, ALL_TO_CPU),
    ),
    Knob(key="engine.offload_param", values=("none", "cpu")),
    *LAYERS,
)
OFFERS = (
    Offer(ON_SEVERAL, "DeepSpeed ZeRO-2", {"zero_stage": 2}, "", 2),
    Offer(ON_SEVERAL, "DeepSpeed ZeRO-3", {"zero_stage": 3}, COMMUNICATES, 2),
    Offer(
        ON_ONE,
        "DeepSpeed, optimizer on the CPU",
        {"zero_stage": 2, "offload_optimizer": "cpu"},
        CPU_STEP,
        4,
    ),
    Offer(
        OF_OWN_LAYERS,
        "DeepSpeed ZeRO-3, full recompute, states in host RAM",
        {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
        "another framework; slower steps",
        4,
    ),
)
