"""The weights of one rank of TGI, adapters and memory left over from loading."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.formula import SIMULATED
from ...ledger.num import ceil_div
from ...ledger.source import ARITHMETIC, code
from ...run.run import Run
from ...run.served import NON_TORCH, WEIGHTS, ServerItem
from ...run.weights import WeightFormat
from ...run.weights.rank_weights import BITS, run_format, weight_items
from ...run.weights.server_adapters import adapter_items
from ...run.weights.shards import ServerShard
from ...run.weights.weight_formulas import weight_formulas
from .graphs import tokens_ahead
from .loading import left_over_bytes

LOAD_CODE = code(
    "text-generation-inference 3.3.7 server/utils/weights.py get_multi_weights_col, played through "
    "torch's allocator"
)
LEFT_OVER = f"{SIMULATED}segments that loading leaves in torch's allocator"
ADAPTERS_CODE = code("text-generation-inference 3.3.7 server/adapters/lora.py")


def _weight_format(run: Run) -> WeightFormat:
    """The format on the GPU: TGI's fp8 leaves attention and the first and last layer in 16 bits.

    flash_llama_modeling.py no_fp8; a checkpoint in fp8 stays as it is.
    """
    weight_format = run_format(run)
    if weight_format.name != "fp8" or run.quantized is not None:
        return weight_format
    prefix, last = run.arch.layer_prefix, len(run.arch.layers) - 1
    skip = (*weight_format.skip, "self_attn", f"{prefix}.0", f"{prefix}.{last}")
    return replace(weight_format, skip=skip)


def rank_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Weights of a rank, memory left over from loading, and adapters.

    The embedding has one more row of zeros, and a tied output head is a copy.
    """
    hidden, size = run.arch.hidden, BITS[run.precision] // 8
    extra = [("embedding", hidden * size, f"{hidden:,} of a row of zeros × {size} bytes")]
    if run.arch.head is None:
        rows = int(ceil_div(run.arch.vocab, shard.head_tp or shard.tp))
        text = f"{rows:,} × {hidden:,} parameters × {size} bytes"
        extra.append(("output head", rows * hidden * size, text))
    if run.options.get("speculative_method") == "medusa":
        heads, square = tokens_ahead(run), f"{hidden:,} × {hidden:,}"
        text = f"floor({heads} heads × {square} × {size} bytes / {shard.tp} ranks)"
        extra.append(("Medusa heads", heads * hidden * hidden * size // shard.tp, text))
    weight_format, sizes = _weight_format(run), [(name, size) for name, size, _ in extra]
    texts = [(name, text) for name, _, text in extra]
    formulas = weight_formulas(run, shard, weight_format, texts)
    for name, num_bytes in weight_items(run, shard, weight_format, extra=sizes):
        yield ServerItem(WEIGHTS, name, num_bytes, ARITHMETIC, formulas(name))
    left_over = left_over_bytes(run, shard, weight_format)
    yield ServerItem(NON_TORCH, "left over from loading", left_over, LOAD_CODE, LEFT_OVER)
    yield from adapter_items(run, shard, ADAPTERS_CODE)
