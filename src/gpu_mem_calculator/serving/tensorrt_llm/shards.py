"""The part of a model on one rank of TensorRT-LLM."""

from __future__ import annotations

from ...run.run import Run
from ...weights.shards import ServerShard


def stage_layers(run: Run) -> list[int]:
    """Layers of each stage: as evenly as can be, the first stages one more."""
    less, more = divmod(len(run.arch.layers), int(run.mesh.pp))
    return [less + (stage < more) for stage in range(int(run.mesh.pp))]


def rank_shard(run: Run) -> ServerShard:
    """The rank's part."""
    counts, stage = stage_layers(run), int(run.stage)
    first = sum(counts[:stage])
    tp, ep = int(run.mesh.tp), int(run.mesh.ep)
    return ServerShard(
        places=range(first, first + counts[stage]), embedding=stage == 0,
        head=stage == len(counts) - 1, tp=tp, attention_tp=tp, ep=ep, expert_tp=tp // ep,
        vocab_multiple=tp,
    )  # fmt: skip
