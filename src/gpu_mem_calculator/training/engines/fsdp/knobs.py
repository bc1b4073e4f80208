"""What is worth turning in a run of FSDP, and what FSDP offers to others."""

from __future__ import annotations

from ....run.recompute import BY_OPERATION, NONE
from ...knob import (
    COMMUNICATES,
    CPU_STEP,
    LAYERS,
    MOVES_ALL,
    OF_OWN_LAYERS,
    ON_HOST,
    ON_SEVERAL,
    POLICY,
    RECOMPUTES,
    SHARDED,
    SHARDS,
    STEPS,
    Knob,
    Offer,
    Saving,
)

# torchtitan's policy: it trains with FSDP.
RERUN_OPERATIONS = Saving(
    BY_OPERATION, "recompute by operation", (NONE,), "less extra compute than full recompute", 2
)
LESS_SHARDED = ("no_shard", "shard_grad_op", "hybrid_shard")
KNOBS = (
    Knob(
        key="engine.sharding_strategy",
        values=("full_shard", "shard_grad_op", "hybrid_shard"),
        kind=SHARDS,
        savings=(Saving("full_shard", "full shard", LESS_SHARDED, COMMUNICATES),),
    ),
    Knob(
        key="engine.cpu_offload",
        values=(False, True),
        kind=MOVES_ALL,
        savings=(Saving(True, "states to CPU", (False,), CPU_STEP, 3),),
    ),
    STEPS,
    *LAYERS,
    Knob(key=POLICY, kind=RECOMPUTES, savings=(ON_HOST, RERUN_OPERATIONS)),
)
OFFERS = (
    Offer(ON_SEVERAL, "FSDP", {}, SHARDED, 2),
    Offer(OF_OWN_LAYERS, "FSDP with full recompute", {}, "another framework; 33 % more compute", 3),
)
