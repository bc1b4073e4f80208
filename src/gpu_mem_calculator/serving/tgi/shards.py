"""The part of a model on one rank of TGI."""

from __future__ import annotations

from ...run.run import Run
from ...run.weights.shards import ServerShard


def rank_shard(run: Run) -> ServerShard:
    """The rank's part; a head is replicated if the vocabulary does not divide by the ranks."""
    tp = int(run.mesh.tp)
    return ServerShard(
        places=range(len(run.arch.layers)),
        tp=tp,
        attention_tp=tp,
        expert_tp=tp,
        head_tp=1 if run.arch.vocab % tp else tp,
    )
