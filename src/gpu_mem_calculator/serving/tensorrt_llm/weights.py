"""Weights of one rank of TensorRT-LLM, a draft's weights, and adapters."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...ledger.source import ARITHMETIC, code
from ...model.adapters import linears
from ...run.run import Run
from ...run.served import WEIGHTS, ServerItem
from ...weights import find_format
from ...weights.rank_weights import BITS, run_format, stored, weight_items
from ...weights.shards import ServerShard
from .versions import TORCH, backend

MXFP4, ALIGNED = "mxfp4", 128  # quantization.py MXFP4WeightCutlassFusedMoEMethod

ADAPTERS = code(
    "TensorRT-LLM 1.2.1 _torch/pyexecutor/_util.py create_py_executor_instance: "
    "max_loras adapters of max_lora_rank"
)


def rank_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """The model's weights, then the draft's, which is sharded by tensor parallelism alone.

    An engine stores a tied head separately. In the PyTorch backend torch's allocator rounds sizes,
    and experts in MXFP4 are padded.
    """
    torch, size = backend(run) == TORCH, BITS[run.precision] // 8
    tied = run.arch.head is None and shard.embedding and shard.head and not torch
    head_bytes = shard.vocab(run.arch.vocab) * run.arch.hidden * size
    extra = [("output head", head_bytes)] if tied else []
    weight_format = run_format(run)
    if torch and weight_format.name == MXFP4:
        weight_format = weight_format.changed(hidden_multiple=ALIGNED, inner_multiple=ALIGNED)
    for name, num_bytes in weight_items(run, shard, weight_format, extra=extra, rounded=torch):
        yield ServerItem(figure=WEIGHTS, name=name, bytes=num_bytes, source=ARITHMETIC)
    if run.draft is not None:
        draft_shard = ServerShard(
            places=range(len(run.draft.layers)),
            tp=shard.tp,
            attention_tp=shard.attention_tp,
            vocab_multiple=shard.tp,
        )
        unquantized = find_format("none", None, run.draft.family)
        num_bytes = sum(
            size for _, size in stored(run.draft, draft_shard, unquantized, BITS[run.precision])
        )
        yield ServerItem(figure=WEIGHTS, name="draft model", bytes=num_bytes, source=ARITHMETIC)


def adapter_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Adapters on every projection: r (in + out) elements each, sharded with the projection."""
    rank = run.options.get("max_lora_rank")
    if rank is None:
        return
    count = int(run.options.get("max_loras") or 1)
    elements = sum(
        int(ceil_div(linear.ins[1] + linear.outs[1], shard.tp))
        for layer in shard.layers(run.arch)
        for linear in linears(layer)
    )
    size = elements * int(rank) * count * BITS[run.precision] // 8
    yield ServerItem(
        figure=WEIGHTS,
        name="adapters",
        bytes=size,
        source=ADAPTERS,
        formula=f"{count} of rank {rank}",
    )
