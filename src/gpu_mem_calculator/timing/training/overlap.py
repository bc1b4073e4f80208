"""What each engine's collectives overlap with by default.

`backward`: gradients are reduced while the last micro-batch's backward runs, `every` micro-batch's,
or `nothing` runs meanwhile. `gathers`: weights are gathered while layers before them run. One row
for each engine, or each stage of ZeRO.
"""

from __future__ import annotations

from msgspec import Struct

from ...run.engine_row import SHARD_STATES, SHARD_UNITS, ZERO
from ...run.run import Run
from ...training.engines import engine_row


class Overlap(Struct, frozen=True):
    """What overlaps.

    - reduces: gradients are reduced while backward runs
    - every: for each micro-batch, not once a step
    - gathers: weights are gathered while other layers run
    """

    reduces: bool
    every: bool
    gathers: bool
    source: str


# torch DDP reduces a bucket as soon as its gradients exist; accumulation runs under no_sync.
DDP_ROW = Overlap(True, False, False, "torch 2.13 nn/parallel/distributed.py, reducer.cpp")
# FSDP gathers the next unit while one runs, and reduces on a stream of its own.
FSDP_ROW = Overlap(
    True, True, True, "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py"
)
# ZeRO: overlap_comm is on at stage 3 only; stage 2 reduces in every backward, 0 and 1 at the end.
ZERO_ROWS = {
    0: Overlap(False, False, False, "deepspeed 0.19.8 runtime/engine.py allreduce_gradients"),
    1: Overlap(False, False, False, "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"),
    2: Overlap(False, True, False, "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"),
    3: Overlap(True, True, True, "deepspeed 0.19.8 runtime/zero/stage3.py"),
}
# Megatron: --overlap-grad-reduce and --overlap-param-gather are off unless given.
MEGATRON_ROW = Overlap(
    False, False, False, "megatron-core 0.19.2 distributed/param_and_grad_buffer.py"
)


def overlap_of(run: Run, engine: str) -> Overlap:
    """What overlaps in a run."""
    ranks = engine_row(engine).ranks
    if ranks == SHARD_UNITS:
        return FSDP_ROW
    if ranks == SHARD_STATES:
        reduces = bool(run.options.get("overlap_grad_reduce"))
        gathers = bool(run.options.get("overlap_param_gather"))
        return Overlap(reduces, False, gathers, MEGATRON_ROW.source)
    if ranks == ZERO:
        row = ZERO_ROWS[int(run.options.get("zero_stage") or 0)]
        given = run.options.get("overlap_comm")
        return row if given is None else Overlap(bool(given), row.every, row.gathers, row.source)
    return DDP_ROW
