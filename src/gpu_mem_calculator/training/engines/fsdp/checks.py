"""What FSDP refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from ....run.run import Run
from .accumulation import accumulates
from .flat.checks import problems as version1_problems
from .options import (
    HYBRID,
    OPTIONS,
    VERSION_1,
    option,
    shard_ranks,
    unit_bits,
    wraps_ends,
    wraps_tied_ends,
)


def problems(run: Run) -> Iterator[str]:
    """One sentence for each thing that FSDP or its mesh would refuse."""
    if run.quantization:
        why = "shards of packed weights are not modelled"
        fix = "leave it out or use engine pytorch_ddp"
        yield f"training.quantization={run.quantization!r}: {why}; {fix}"
    if run.autocast and not run.precision.endswith("_mixed"):
        why = "FSDP casts by its own policy"
        fix = "leave it out and set training.precision to bf16_mixed"
        yield f"training.autocast=true: {why}; {fix}"
    if run.arch.tower and option(run, "cpu_offload"):
        why = "is not modelled for a model with a vision tower"
        fix = "leave it out, or try engine deepspeed with offload_param cpu"
        yield f"engine.cpu_offload=true {why}; {fix}"
    yield from _strategy_problems(run)
    yield from _accumulation_problems(run)
    yield from version1_problems(run) if option(run, "fsdp_version") == 1 else _version2(run)


def _version2(run: Run) -> Iterator[str]:
    """Options of version 1 that version 2 does not have, and units around the ends."""
    for name in VERSION_1:
        if option(run, name) != OPTIONS[name]:
            value = str(option(run, name)).lower()
            why = "is an option of FSDP version 1"
            yield f"engine.{name}={value} {why}; leave it out or set engine.fsdp_version to 1"
    where = option(run, "init_device")
    if where not in (None, "meta") and (option(run, "cpu_offload") or run.arch.tower):
        why = "is not modelled for FSDP version 2 with cpu_offload or a vision tower"
        yield f"engine.init_device={where!r} {why}; leave it out, which is 'meta'"
    yield from _end_problems(run)


def _end_problems(run: Run) -> Iterator[str]:
    what = "units of embedding and head (engine.wrap_embedding_and_head)"
    if not (wraps_ends(run) or wraps_tied_ends(run)):
        return
    if run.arch.tied and run.arch.implementation == "torchtitan":
        why = "are not modelled for torchtitan's layers with a tied embedding"
        yield f"{what} {why}; set engine.wrap_embedding_and_head to false"
    reshards = option(run, "reshard_root_after_forward") is not None
    for key, given in (
        ("engine.cpu_offload=true", option(run, "cpu_offload")),
        ("engine.reshard_root_after_forward", reshards),
        ("engine.sharding_strategy='no_shard'", option(run, "sharding_strategy") == "no_shard"),
    ):
        if given:
            yield f"{key} with {what} is not modelled; leave one of them out"


def _accumulation_problems(run: Run) -> Iterator[str]:
    if not accumulates(run):
        return
    fix = "set engine.sync_each_batch to true"
    alone = isinstance(ranks := shard_ranks(run), int) and ranks == 1
    if option(run, "fsdp_version") == 1 and alone:
        why = "is not modelled for FSDP version 1 where a group has one rank"
        yield f"engine.sync_each_batch=false {why}; {fix}"
    if option(run, "fsdp_version") == 2 and any(b.reduce != b.compute for b in unit_bits(run)):
        why = "for FSDP version 2 with a reduce_dtype other than the dtype of the gradients"
        fix = f"leave engine.reduce_dtype out, or {fix}"
        yield f"engine.sync_each_batch=false is not modelled {why}; {fix}"


def _strategy_problems(run: Run) -> Iterator[str]:
    hybrid = option(run, "sharding_strategy") in HYBRID
    size = option(run, "hybrid_shard_size")
    if size and not hybrid:
        why = f"applies to {' and '.join(HYBRID)}"
        fix = "leave it out or set engine.sharding_strategy to hybrid_shard"
        yield f"engine.hybrid_shard_size={size} {why}; {fix}"
    reshard = option(run, "reshard_root_after_forward")
    if reshard is not None and option(run, "sharding_strategy") == "no_shard":
        why = "replicate never reshards"
        fix = "leave it out or set engine.sharding_strategy to full_shard"
        yield f"engine.reshard_root_after_forward={str(reshard).lower()}: {why}; {fix}"
    ranks, dp = shard_ranks(run), run.mesh.dp
    if hybrid and isinstance(dp, int) and (dp % ranks or (size or 1) > dp):
        most = min(int(ranks), dp)
        near = next((n for n in range(most, max(0, most - 10_000), -1) if dp % n == 0), 1)
        why = f"does not divide data_parallel_size={dp}"
        yield f"engine.hybrid_shard_size={size or ranks} {why}; try {near}"
