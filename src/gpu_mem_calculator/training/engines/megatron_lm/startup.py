"""Temporaries of start-up: parameters that move into a buffer, and weights cast to fp32."""

from __future__ import annotations

from msgspec.structs import replace

from ....ledger.num import EMPTY, Bytes, Num, choose, holds, larger, sized, smaller
from ....models.arch.arch import Layer
from ....models.arch.blocks import LatentAttention, Moe
from ....run.run import Run
from ...step.pipeline import PipelineStage
from .shards import (
    MegatronShard,
    after_shard,
    embedding_shard,
    experts_apart,
    layer_shard,
    local_vocab,
    matrices,
    stepped_shares,
)

Units = list[tuple[list[Num], Num]]  # elements of the matrices of a unit, how many units


def chunk_shards(run: Run, stage: PipelineStage) -> tuple[MegatronShard, MegatronShard]:
    """The parameters of a stage's first and of its last chunk, which may be the same."""
    one = holds(run.virtual_stages == 1)
    front = embedding_shard(run).times(stage.first)
    back = after_shard(run, stage.first).times(stage.last)
    first, last = front + back.times(one), back + front.times(one)
    for block, low, high in zip(stage.blocks, stage.opening, stage.closing, strict=True):
        layer = layer_shard(run, block.layer)
        first, last = first + layer.times(low), last + layer.times(high)
    return first, last


def moving_bytes(run: Run, stage: PipelineStage, total: Num, width: int, wide: int) -> Bytes:
    """Peak bytes while the distributed optimizer's buffers are made, beyond what they end with.

    Each chunk gets one buffer of weights and gradients for its dense parameters, then one for its
    experts; the old weights are freed when a buffer is made (distributed_data_parallel.py:60-90,
    param_and_grad_buffer.py:1160-1180). `width`, `wide`: bits of a weight, of its gradient. The
    peak is in the first buffer, or in one of the last chunk's.
    """
    first, last = chunk_shards(run, stage)
    begin = sized(first.dense, width + wide) - sized(total, wide)
    end = sized(last.dense, width) - sized(last.experts, wide)
    return larger(begin, larger(end, sized(last.experts, width)))


def widening_bytes(run: Run, stage: PipelineStage, shard: MegatronShard, *, split: bool) -> Bytes:
    """Bytes of the 16-bit copy of a weight being cast to fp32, beyond what start-up ends with.

    optimizer.py:1012: `clone().float()`, dense matrices in the model's order, vectors after
    them, experts last. The distributed optimizer (`split`) casts the rank's part of each
    buffer, which has the parameters in reverse order (distrib_optimizer.py:448); the last chunk's
    buffer comes last.
    """
    order = -1 if split else 1
    counts = stage.closing if split else stage.held
    front = stage.first * (holds(run.virtual_stages == 1) if split else 1)
    table = local_vocab(run) * run.arch.hidden
    apart = experts_apart(run)
    merged = not (isinstance(apart, int) and apart)
    layers: Units = []
    inside: Units = []
    for block, count in zip(stage.blocks, counts, strict=True):
        dense, experts = _matrix_elements(run, block.layer)
        within = (
            experts * int(block.layer.mlp.num_experts) if isinstance(block.layer.mlp, Moe) else []
        )
        layers.append(((dense + within * merged)[::order], count))
        if isinstance(block.layer.mlp, Moe):
            inside.append((experts[::order], count * (block.layer.mlp.num_experts // run.mesh.ep)))
    back = stage.last * (1 - stage.first if run.arch.tied else 1)
    tables = [table, embedding_shard(run).dense - table]  # of words, of positions
    units = [(tables[::order], front), *layers, ([table], back)][::order]
    if split:
        last = chunk_shards(run, stage)[1]
        parts = stepped_shares(run, last.dense, last.experts)
        shard = replace(last, dense=parts[0], experts=parts[1])
    above = _peak_excess(inside[::order], shard.experts) if inside else EMPTY
    return choose(shard.experts > 0, above, _peak_excess(units, shard.dense))


def _matrix_elements(run: Run, layer: Layer) -> tuple[list[Num], list[Num]]:
    """Dense matrices of a layer in the order they are made, and those of one expert.

    The output projection is made before the others (transformer/attention.py Attention.__init__).
    """
    sizes = [size for _, size, _ in matrices(run, layer)]
    mixer = layer.mixer
    count = len(mixer.query) + 3 if isinstance(mixer, LatentAttention) else 2
    first, rest = [sizes[count - 1], *sizes[: count - 1]], sizes[count:]
    if isinstance(layer.mlp, Moe):
        return first + rest[2:], rest[:2]
    return first + rest, []


def _peak_excess(units: Units, total: Num) -> Bytes:
    """The most bytes by which the 16-bit copy of a matrix exceeds the fp32 copies of all that
    follow.

    `total` elements are cast, from the first unit on. The peak can only be near their end: in the
    last unit, or in the one before it.
    """
    most = EMPTY
    start: Num = 0
    for sizes, count in units:
        unit: Num = sum(sizes)
        last = larger(smaller((total - start) // unit, count - 1), 0)
        for back in (1, 0):
            at = start + larger(last - back, 0) * unit
            for size in sizes:
                piece = smaller(larger(total - at, 0), size) * holds(count > 0)
                rest = larger(total - at - piece, 0)
                most = larger(most, sized(piece, 16) - sized(rest, 32))
                at = at + size
        start = start + count * unit
    return most
