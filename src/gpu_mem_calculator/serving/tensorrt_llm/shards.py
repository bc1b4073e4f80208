"""The part of a model on one rank of TensorRT-LLM."""

from __future__ import annotations

from ...run.run import Run
from ...run.weights.shards import ServerShard, stage_shard


def stage_layers(run: Run) -> list[int]:
    """Layers of each pipeline stage: as even as possible, the first stages have one more."""
    fewest, longer_stages = divmod(len(run.arch.layers), int(run.mesh.pp))
    return [fewest + (stage < longer_stages) for stage in range(int(run.mesh.pp))]


def rank_shard(run: Run) -> ServerShard:
    """One rank's part of pipeline stage `run.stage`."""
    tp, ep = int(run.mesh.tp), int(run.mesh.ep)
    return stage_shard(
        stage_layers(run),
        int(run.stage),
        tp=tp,
        attention_tp=tp,
        ep=ep,
        expert_tp=tp // ep,
        vocab_multiple=tp,
    )
