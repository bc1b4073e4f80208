"""What FSDP version 1 refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from .....run.run import Run
from ..options import HYBRID, PRECISIONS, option, shard_ranks, wraps_ends, wraps_tied_ends


def problems(run: Run) -> Iterator[str]:
    """One sentence for each thing that FullyShardedDataParallel refuses, or is not modelled."""
    if option(run, "reshard_root_after_forward") is not None:
        why = "FSDP version 1 always keeps the root gathered until its backward"
        fix = "leave it out or set engine.fsdp_version to 2"
        yield f"engine.reshard_root_after_forward: {why}; {fix}"
    if option(run, "keep_low_precision_grads"):
        why = "torch's optimizers take gradients in the dtype of the parameters only"
        yield f"engine.keep_low_precision_grads=true: {why}; leave it out"
    if wraps_ends(run) or wraps_tied_ends(run):
        why = "around embedding and head (engine.wrap_embedding_and_head, torchtitan's models)"
        yield f"engine.fsdp_version=1 is not modelled for units {why}; set engine.fsdp_version to 2"
    if run.arch.tower:
        why = "is not modelled for a model with a vision tower"
        yield f"engine.fsdp_version=1 {why}; set engine.fsdp_version to 2"
    ranks = shard_ranks(run)
    alone = isinstance(ranks, int) and ranks == 1
    if alone and option(run, "cpu_offload"):
        why = "FSDP version 1 does not shard over one rank, and then its offload is not modelled"
        yield f"engine.cpu_offload=true: {why}; leave it out or set engine.fsdp_version to 2"
    if option(run, "sharding_strategy") in HYBRID and alone:
        why = "FSDP version 1 reduces no gradients over the replicas of a group of one rank"
        yield f"engine.hybrid_shard_size=1: {why}; set engine.sharding_strategy to no_shard"
    if option(run, "init_dtype") and (
        not run.precision.endswith("_mixed")
        or option(run, "cpu_offload")
        or option(run, "init_device") not in (None, "cpu")
        or option(run, "init_dtype") == "fp32"
    ):
        why = "is 16-bit, for mixed precision, from init_device cpu and without cpu_offload"
        yield f"engine.init_dtype={option(run, 'init_dtype')!r} {why}; leave it out"
    yield from _adapter_problems(run)


def _adapter_problems(run: Run) -> Iterator[str]:
    """A flat parameter has one dtype, and without use_orig_params one `requires_grad`."""
    if run.adapter is None:
        return
    if not option(run, "use_orig_params"):
        why = "FSDP version 1 cannot flatten frozen and trained parameters into one"
        yield f"engine.use_orig_params=false: {why}; set engine.use_orig_params to true"
    if run.adapter.dora:
        why = "is not modelled for FSDP version 1"
        yield f"training.lora.dora=true {why}; leave it out or set engine.fsdp_version to 2"
    stored = PRECISIONS[run.precision][0]
    if run.adapter.bits != stored:
        yield (
            f"training.lora: adapters have {run.adapter.bits} bits and weights {stored}, and a "
            "flat parameter of FSDP version 1 has one dtype; set training.lora.adapter_dtype to "
            "that of the weights, or training.precision to bf16_mixed"
        )
