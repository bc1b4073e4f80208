"""The weights of one rank of TGI, adapters and memory left over from loading."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...ledger.source import ARITHMETIC, code
from ...model.adapters import linears
from ...run.run import Run
from ...run.served import NON_TORCH, WEIGHTS, ServerItem
from ...weights import WeightFormat
from ...weights.rank_weights import BITS, run_format, weight_items
from ...weights.shards import ServerShard
from .graphs import tokens_ahead
from .loading import left_over_bytes

LOAD_CODE = code(
    "text-generation-inference 3.3.7 server/utils/weights.py get_multi_weights_col, played through "
    "torch's allocator"
)


def _weight_format(run: Run) -> WeightFormat:
    """The format on the GPU: TGI's fp8 leaves attention and the first and last layer in 16 bits.

    flash_llama_modeling.py no_fp8; a checkpoint in fp8 stays as it is.
    """
    weight_format = run_format(run)
    if weight_format.name != "fp8" or run.quantized is not None:
        return weight_format
    prefix, last = run.arch.layer_prefix, len(run.arch.layers) - 1
    return replace(
        weight_format, skip=(*weight_format.skip, "self_attn", f"{prefix}.0", f"{prefix}.{last}")
    )


def rank_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Weights of a rank, memory left over from loading, and adapters.

    The embedding has one more row of zeros, and a tied output head is a copy.
    """
    hidden, size = run.arch.hidden, BITS[run.precision] // 8
    extra = [("embedding", hidden * size)]
    if run.arch.head is None:
        rows = int(ceil_div(run.arch.vocab, shard.head_tp or shard.tp))
        extra.append(("output head", rows * hidden * size))
    if run.options.get("speculative_method") == "medusa":
        extra.append(("Medusa heads", tokens_ahead(run) * hidden * hidden * size // shard.tp))
    weight_format = _weight_format(run)
    for name, num_bytes in weight_items(run, shard, weight_format, extra=extra):
        yield ServerItem(figure=WEIGHTS, name=name, bytes=num_bytes, source=ARITHMETIC)
    yield ServerItem(
        figure=NON_TORCH,
        name="left over from loading",
        source=LOAD_CODE,
        bytes=left_over_bytes(run, shard, weight_format),
    )
    rank = run.options.get("max_lora_rank")
    if rank is not None:
        count = int(run.options.get("max_loras") or 1)
        elements = sum(
            int(ceil_div(linear.ins[1] + linear.outs[1], shard.tp))
            for layer in shard.layers(run.arch)
            for linear in linears(layer)
        )
        yield ServerItem(
            figure=WEIGHTS,
            name="adapters",
            bytes=count * int(rank) * elements * size,
            source=code("text-generation-inference 3.3.7 server/adapters/lora.py"),
            formula=f"{count} of rank {rank}",
        )
