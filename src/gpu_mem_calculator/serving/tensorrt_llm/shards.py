"""The part of a model on one rank of TensorRT-LLM."""

from __future__ import annotations

from ...run.run import Run
from ...run.weights.shards import ServerShard


def stage_layers(run: Run) -> list[int]:
    """Layers of each pipeline stage: as even as possible, the first stages have one more."""
    fewest, longer_stages = divmod(len(run.arch.layers), int(run.mesh.pp))
    return [fewest + (stage < longer_stages) for stage in range(int(run.mesh.pp))]


def rank_shard(run: Run) -> ServerShard:
    """One rank's part of pipeline stage `run.stage`."""
    counts, stage = stage_layers(run), int(run.stage)
    first = sum(counts[:stage])
    tp, ep = int(run.mesh.tp), int(run.mesh.ep)
    return ServerShard(
        places=range(first, first + counts[stage]),
        embedding=stage == 0,
        head=stage == len(counts) - 1,
        tp=tp,
        attention_tp=tp,
        ep=ep,
        expert_tp=tp // ep,
        vocab_multiple=tp,
    )
