"""The part of a model on one rank of vLLM.

vllm 0.11.0 vllm/distributed/utils.py get_pp_indices, vllm/model_executor/layers/fused_moe/config.py
FusedMoEParallelConfig.make, vllm/model_executor/layers/vocab_parallel_embedding.py.
"""

from __future__ import annotations

from ...models.arch.blocks import Moe
from ...run.run import Run
from ...run.weights.shards import ServerShard, stage_shard
from .versions import version

VOCAB_MULTIPLE = 64
EVEN_STAGES = (0, 8, 0)  # before, the last stage had all remaining layers


def stage_layers(run: Run) -> list[int]:
    """Layers of each pipeline stage.

    Layers that remain go to the last stage but one, then to the one before it, and so on.
    """
    layers, stages = len(run.arch.layers), int(run.mesh.pp)
    each, remaining = divmod(layers, stages)
    counts = [each] * stages
    if version(run) < EVEN_STAGES:
        counts[-1] += remaining
        return counts
    for back in range(2, remaining + 2):
        counts[-back] += 1
    return counts


def rank_shard(run: Run, stage: int) -> ServerShard:
    """One rank's part of a pipeline stage.

    Data-parallel replicas share experts: with expert parallelism each rank has whole experts,
    otherwise a slice of every expert.
    """
    tp, expert_parallel = int(run.mesh.tp), run.mesh.ep > 1
    ranks = tp * int(run.mesh.dp)
    return stage_shard(
        stage_layers(run),
        stage,
        tp=tp,
        attention_tp=tp,
        ep=ranks if expert_parallel else 1,
        expert_tp=1 if expert_parallel else ranks,
        vocab_multiple=VOCAB_MULTIPLE,
        tower_tp=1 if run.options["mm_encoder_tp_mode"] == "data" else 0,
    )


def first_moe(run: Run) -> Moe | None:
    """The model's first mixture of experts; None if it has none."""
    return next((layer.mlp for layer, _, _ in run.arch.runs if isinstance(layer.mlp, Moe)), None)
