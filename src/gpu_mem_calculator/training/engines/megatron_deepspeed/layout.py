"""The ZeRO layout of one rank: Megatron's shards are the parameters that DeepSpeed trains."""

from __future__ import annotations

from collections import Counter

from ....ledger.num import larger
from ....run.run import Run
from ...step.layer_groups import overlap
from ...step.pipeline import PipelineStage
from ..deepspeed.coordinator import GatherLimits
from ..deepspeed.layout import Runs, ZeroLayout, listed
from ..deepspeed.modules import trainable_runs
from ..megatron_lm.options import bits
from .shards import vectors

LIMITS = GatherLimits()
"""How many parameters stage 3 keeps gathered: DeepSpeed's defaults (zero/config.py)."""
GROUP = 1_000_000_000
"""Elements of a sub-group of stage 3: sub_group_size in zero/config.py."""


def piped(run: Run) -> bool:
    """Whether DeepSpeed's PipelineEngine runs the model: ZeRO 0 and 1, also with one stage."""
    return int(run.options["zero_stage"]) < 2


def stage_runs(rank: Run, stage: PipelineStage) -> Runs:
    """The sizes of a stage's parameters in the optimizer's order, and how often each group occurs.

    A tied last stage builds the whole embedding, positions too, for its copy of the table, and
    PipelineModule registers tied modules before all others (runtime/pipe/module.py).
    """
    pp, size = rank.mesh.pp, len(rank.arch.layers) // rank.mesh.pp
    low = rank.stage * size
    tied = stage.last if rank.arch.tied and int(pp) > 1 else 0
    ends = {-1: larger(stage.first, tied), -2: stage.last}
    return tuple(
        (sizes, ends[start] if start < 0 else overlap(start, count, low, low + size))
        for sizes, start, count in trainable_runs(rank.arch)
    )


def plan_of(run: Run, rank: Run, stage: PipelineStage) -> ZeroLayout:
    """The ZeRO layout of this rank; gradients are always in a contiguous buffer."""
    level, place = int(run.options["zero_stage"]), str(run.options["offload_optimizer"])
    overlaps, width, runs = run.options["overlap_comm"], bits(run) // 8, stage_runs(rank, stage)
    counts: Counter[int] = Counter()
    for sizes, units in runs:
        for size in sizes if int(units) else ():
            counts[size] += int(units)
    return ZeroLayout(
        run=rank,
        stage=level,
        width=width,
        trained_width=width,
        ranks=run.mesh.dp,
        trainable=listed(runs),
        frozen=0,
        runs=runs,
        counts=dict(counts),
        frozen_counts={},
        instants=(),
        bucket=int(run.options["reduce_bucket_size"]),
        overlap=not piped(run) and bool(level == 3 if overlaps is None else overlaps),
        contiguous=True,
        offload=place,
        offload_param="none",
        pinned=False,
        implementation="fused",
        pipeline=piped(run),
        layers=len(run.arch.layers) // run.mesh.pp if piped(run) else None,
        first=stage.first,
        last=stage.last,
        one_stage=int(run.mesh.pp) == 1,
        apart=vectors(rank.arch) if level < 3 else frozenset(),
        builds_head=False,
        root_head=level == 3,
    )
