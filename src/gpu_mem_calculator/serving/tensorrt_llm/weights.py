"""What is loaded before TensorRT-LLM runs anything: the model's weights, a draft's, adapters."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...ledger.source import ARITHMETIC, code
from ...model.adapters import linears
from ...run.run import Run
from ...run.served import WEIGHTS, ServerItem
from ...weights import scheme
from ...weights.rank_weights import BITS, run_scheme, stored, weight_items
from ...weights.shards import ServerShard
from .versions import TORCH, backend

MXFP4, ALIGNED = "mxfp4", 128  # quantization.py MXFP4WeightCutlassFusedMoEMethod

ADAPTERS = code("TensorRT-LLM 1.2.1 _torch/pyexecutor/_util.py create_py_executor_instance: "
                "max_loras adapters of max_lora_rank")  # fmt: skip


def rank_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """The model's, and behind it the draft's, whole but for the cuts of tensor parallelism.

    An engine has a tied head by itself; torch's allocator rounds where torch loads, and experts in
    MXFP4 are padded.
    """
    torch, size = backend(run) == TORCH, BITS[run.precision] // 8
    tied = run.arch.head is None and shard.embedding and shard.head and not torch
    copy = shard.vocab(run.arch.vocab) * run.arch.hidden * size
    extra = [("output head", copy)] if tied else []
    how = run_scheme(run)
    if torch and how.name == MXFP4:
        how = how.changed(hidden_multiple=ALIGNED, inner_multiple=ALIGNED)
    for name, number in weight_items(run, shard, how, extra=extra, rounded=torch):
        yield ServerItem(figure=WEIGHTS, name=name, bytes=number, source=ARITHMETIC)
    if run.draft is not None:
        whole = ServerShard(places=range(len(run.draft.layers)), tp=shard.tp,
                      attention_tp=shard.attention_tp, vocab_multiple=shard.tp)  # fmt: skip
        plain = scheme("none", None, run.draft.family)
        number = sum(size for _, size in stored(run.draft, whole, plain, BITS[run.precision]))
        yield ServerItem(figure=WEIGHTS, name="draft model", bytes=number, source=ARITHMETIC)


def adapter_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Room for adapters on every projection: r (in + out) elements, cut with the projection."""
    rank = run.options.get("max_lora_rank")
    if rank is None:
        return
    count = int(run.options.get("max_loras") or 1)
    total = sum(
        int(ceil_div(one.ins[1] + one.outs[1], shard.tp))
        for layer in shard.layers(run.arch) for one in linears(layer)
    )  # fmt: skip
    size = total * int(rank) * count * BITS[run.precision] // 8
    yield ServerItem(figure=WEIGHTS, name="adapters", bytes=size, source=ADAPTERS,
               formula=f"{count} of rank {rank}")  # fmt: skip
