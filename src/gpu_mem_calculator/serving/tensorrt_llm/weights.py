"""Weights of one rank of TensorRT-LLM, a draft's weights, and adapters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...ledger.formula import product
from ...ledger.source import ARITHMETIC, code
from ...run.run import Run
from ...run.served import WEIGHTS, ServerItem
from ...run.weights import find_format
from ...run.weights.rank_weights import BITS, adapter_items, run_format, stored, weight_items
from ...run.weights.shards import ServerShard, held
from ...run.weights.weight_formulas import parameters_formula, weight_formulas
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
    torch, size = backend(run) == TORCH, ("bytes", BITS[run.precision] // 8)
    tied = run.arch.head is None and shard.embedding and shard.head and not torch
    head_bytes, rows = product(shard.vocab(run.arch.vocab), ("parameters", run.arch.hidden), size)
    extra = [("output head", head_bytes)] if tied else []
    weight_format = run_format(run)
    if torch and weight_format.name == MXFP4:
        weight_format = weight_format.changed(hidden_multiple=ALIGNED, inner_multiple=ALIGNED)
    texts = [(name, rows) for name, _ in extra]
    formulas = weight_formulas(run, shard, weight_format, texts)
    for name, num_bytes in weight_items(run, shard, weight_format, extra=extra, rounded=torch):
        yield ServerItem(WEIGHTS, name, num_bytes, ARITHMETIC, formulas(name))
    if run.draft is not None:
        layers, tp = range(len(run.draft.layers)), shard.attention_tp
        draft = ServerShard(places=layers, tp=shard.tp, attention_tp=tp, vocab_multiple=shard.tp)
        unquantized = find_format("none", None, run.draft.family)
        tensors = stored(run.draft, draft, unquantized, BITS[run.precision])
        num_bytes = sum(one for _, one in tensors)
        text = partial(parameters_formula, held(run.draft, draft), unquantized, BITS[run.precision])
        yield ServerItem(WEIGHTS, "draft model", num_bytes, ARITHMETIC, text)
    yield from adapter_items(run, shard, ADAPTERS)
