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
from ...weights.rank_weights import BITS, run_scheme, weight_items
from ...weights.shards import ServerShard
from .graphs import tokens_ahead
from .loading import left_over_bytes

LOAD_CODE = code(
    "text-generation-inference 3.3.7 server/utils/weights.py get_multi_weights_col, played through "
    "torch's allocator"
)


def _weight_format(run: Run) -> WeightFormat:
    """fp8 that TGI makes itself leaves attention and the first and last layer in 16 bits.

    flash_llama_modeling.py no_fp8.
    """
    how = run_scheme(run)
    if how.name != "fp8" or run.quantized is not None:
        return how
    prefix, last = run.arch.layer_prefix, len(run.arch.layers) - 1
    return replace(how, skip=(*how.skip, "self_attn", f"{prefix}.0", f"{prefix}.{last}"))


def rank_items(run: Run, own: ServerShard) -> Iterator[ServerItem]:
    """The model, a row of zeros in the embedding, and a head of its own where it is tied."""
    hidden, size = run.arch.hidden, BITS[run.precision] // 8
    extra = [("embedding", hidden * size)]
    if run.arch.head is None:
        rows = int(ceil_div(run.arch.vocab, own.head_tp or own.tp))
        extra.append(("output head", rows * hidden * size))
    if run.options.get("speculative_method") == "medusa":
        extra.append(("Medusa heads", tokens_ahead(run) * hidden * hidden * size // own.tp))
    how = _weight_format(run)
    for name, number in weight_items(run, own, how, extra=extra):
        yield ServerItem(figure=WEIGHTS, name=name, bytes=number, source=ARITHMETIC)
    yield ServerItem(figure=NON_TORCH, name="left over from loading", source=LOAD_CODE,
               bytes=left_over_bytes(run, own, how))  # fmt: skip
    rank = run.options.get("max_lora_rank")
    if rank is not None:
        count = int(run.options.get("max_loras") or 1)
        wide = sum(int(ceil_div(one.ins[1] + one.outs[1], own.tp))
                   for layer in own.layers(run.arch) for one in linears(layer))  # fmt: skip
        yield ServerItem(figure=WEIGHTS, name="adapters", bytes=count * int(rank) * wide * size,
                   source=code("text-generation-inference 3.3.7 server/adapters/lora.py"),
                   formula=f"{count} of rank {rank}")  # fmt: skip
