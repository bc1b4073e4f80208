"""Which part of a model a rank of vLLM has.

vllm 0.11.0 vllm/distributed/utils.py get_pp_indices, vllm/model_executor/layers/fused_moe/config.py
FusedMoEParallelConfig.make, vllm/model_executor/layers/vocab_parallel_embedding.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.blocks import Moe
from ...run.run import Run
from ...weights.shards import ServerShard
from .versions import version

VOCAB_MULTIPLE = 64
EVEN_STAGES = (0, 8, 0)  # before, the last stage had all layers that were left over


def stage_layers(run: Run) -> list[int]:
    """Layers of each pipeline stage: what is left over goes to the last but one, and so on up."""
    layers, stages = len(run.arch.layers), int(run.mesh.pp)
    each, left = divmod(layers, stages)
    found = [each] * stages
    if version(run) < EVEN_STAGES:
        found[-1] += left
        return found
    for back in range(2, left + 2):
        found[-back] += 1
    return found


def shard(run: Run, stage: int) -> ServerShard:
    """The rank's part of a stage.

    Ranks of several data-parallel copies share experts: each has whole ones with expert
    parallelism, else a slice of all.
    """
    counts, tp = stage_layers(run), int(run.mesh.tp)
    start = sum(counts[:stage])
    ranks = tp * int(run.mesh.dp)
    spread = run.mesh.ep > 1
    return ServerShard(
        places=range(start, start + counts[stage]), embedding=stage == 0,
        head=stage == len(counts) - 1, tp=tp, attention_tp=tp, ep=ranks if spread else 1,
        expert_tp=1 if spread else ranks, vocab_multiple=VOCAB_MULTIPLE,
    )  # fmt: skip


def experts(run: Run) -> Moe | None:
    """The first mixture of experts, if there is one."""
    return next((x.mlp for x, _, _ in run.arch.runs if isinstance(x.mlp, Moe)), None)


def problems(run: Run) -> Iterator[str]:
    """Cuts that vLLM refuses."""
    ep, ranks, moe = int(run.mesh.ep), int(run.mesh.tp) * int(run.mesh.dp), experts(run)
    if ep > 1 and moe is None:
        yield (f"inference.expert_parallel_size={ep}, but {run.arch.family} has no experts; "
               "leave it out")  # fmt: skip
    elif ep > 1 and ep != ranks:
        yield (f"inference.expert_parallel_size={ep} must be tensor_parallel_size x "
               f"data_parallel_size={ranks}; set it to {ranks}")  # fmt: skip
    elif ep > 1 and moe is not None and ranks > moe.num_experts:
        yield (f"inference.expert_parallel_size={ep} is more than {moe.num_experts} experts; use "
               f"{moe.num_experts}")  # fmt: skip
