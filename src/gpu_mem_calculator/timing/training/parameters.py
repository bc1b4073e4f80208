"""Elements of the parameters that a rank holds, gathers, reduces and steps."""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import Num, ceil_div, holds
from ...models.arch.adapters import total_adapter_parameters
from ...run.engine_row import SHARD_STATES, SHARD_UNITS, ZERO
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.fsdp.options import shard_ranks
from ...training.engines.megatron_lm import options as megatron
from ...training.engines.megatron_lm.shards import (
    after_shard,
    embedding_shard,
    layer_shard,
    stepped_shares,
)
from .operators import EqualLayers


class RankParameters(Struct, frozen=True, kw_only=True):
    """Elements of one rank's parameters.

    - dense, experts: before data parallelism shards them; experts that have ranks of their own
    - trained: of dense, those that take a gradient
    - stepped: those that this rank's optimizer steps
    """

    dense: Num
    experts: Num
    trained: Num
    stepped: Num


def rank_parameters(
    run: Run, engine: str, kinds: tuple[EqualLayers, ...], counts: tuple[Num, ...]
) -> RankParameters:
    """The parameters of the first stage, which has `counts` layers of each kind: it is the last to
    finish its backward.
    """
    if not engine_row(engine).megatron:
        return _whole_model(run, engine)
    shard = embedding_shard(run) + after_shard(run, 1).times(holds(run.mesh.pp == 1))
    for kind, count in zip(kinds, counts, strict=True):
        shard += layer_shard(run, kind.layer).times(count)
    dense, experts = shard.dense, shard.experts
    stepped: Num = dense + experts
    ranks = engine_row(engine).ranks
    if ranks == SHARD_STATES and megatron.option(run, "distributed_optimizer"):
        share, expert_share = stepped_shares(run, dense, experts)
        stepped = share + expert_share
    if ranks == ZERO and run.options.get("zero_stage", 0) > 0:
        stepped = ceil_div(dense, run.mesh.dp)
    return RankParameters(dense=dense, experts=experts, trained=dense, stepped=stepped)


def _whole_model(run: Run, engine: str) -> RankParameters:
    """The whole model, and the part that ZeRO or FSDP leaves to this rank."""
    total = trained = ceil_div(run.arch.num_parameters, run.mesh.pp)
    if run.adapter is not None:
        one = run.adapter
        trained = total_adapter_parameters(run.arch, one.rank, one.targets, dora=one.dora)
        total = total + trained
    stepped = trained
    ranks = engine_row(engine).ranks
    if ranks == SHARD_UNITS:
        stepped = ceil_div(trained, shard_ranks(run))
    elif ranks == ZERO and run.options.get("zero_stage", 0) > 0:
        stepped = ceil_div(trained, run.mesh.dp)
    return RankParameters(dense=total, experts=0, trained=trained, stepped=stepped)
