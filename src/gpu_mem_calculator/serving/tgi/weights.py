"""The weights of one rank of TGI, adapters, and memory left over from loading: what torch reserves
without using it.

TGI moves each projection to the GPU, concatenates q, k and v, and gate and up, and frees the
pieces. The cached segments that the concatenated tensors partly occupy cannot be released.

text-generation-inference 3.3.7 server/text_generation_server/utils/weights.py get_multi_weights_col
and layers/tensor_parallel.py TensorParallelEmbedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from msgspec.structs import replace

from ...ledger.formula import SIMULATED
from ...ledger.num import ceil_div
from ...ledger.remember import remembered
from ...ledger.source import ARITHMETIC, code
from ...pytorch.replay.replays import history
from ...pytorch.replay.stream import AllocationStream
from ...run.run import Run
from ...run.served import NON_TORCH, WEIGHTS, ServerItem
from ...run.weights import WeightFormat
from ...run.weights.rank_weights import BITS, adapter_items, run_format, weight_items
from ...run.weights.shards import EMBEDDING, EXPERT, ServerShard, ShardedParameter, held
from ...run.weights.weight_formulas import weight_formulas
from .activations import StreamRecorder
from .graphs import tokens_ahead


def left_over_bytes(run: Run, shard: ServerShard, weight_format: WeightFormat) -> int:
    """Bytes reserved but not allocated after loading, when torch's cache was emptied."""
    recorder, bits = StreamRecorder(), BITS[run.precision]
    parameters = held(run.arch, shard)
    for _, group in groupby(parameters, lambda one: (one.layer, one.joint or one.name)):
        sized = [(one, sum(size for _, size in weight_format.stored(one, bits))) for one in group]
        _load_tensor(recorder, sized)
    return _left_over(tuple(recorder.sizes), tuple(recorder.events))


def _load_tensor(recorder: StreamRecorder, group: list[tuple[ShardedParameter, int]]) -> None:
    """Load one tensor, or several that become one. An embedding is copied to add a row."""
    pieces = [recorder.allocate(size) for _, size in group]
    if len(group) > 1:
        recorder.allocate(sum(size for _, size in group))
        recorder.free(*pieces)
    elif group[0][0].role == EMBEDDING:
        recorder.allocate(group[0][1] + group[0][0].shape[-1] * 2)
        recorder.free(*pieces)
    elif group[0][0].role == EXPERT:  # one expert at a time, copied into the allocated tensor
        piece = recorder.allocate(group[0][1] // max(1, group[0][0].shape[0]))
        recorder.free(piece)


@remembered(64, always=True)
def _left_over(sizes: tuple[int, ...], events: tuple[int, ...]) -> int:
    """Replay the events, empty the cache, and subtract allocated from reserved bytes."""
    end = len(events)
    stream = AllocationStream.of(sizes=[*sizes, 512], events=[*events, len(sizes)], empties=[end])
    allocated, reserved = history(stream)[-1]
    return reserved - allocated


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
    weight_format, sizes = _weight_format(run), [one[:2] for one in extra]
    formulas = weight_formulas(run, shard, weight_format, [(one[0], one[2]) for one in extra])
    for name, num_bytes in weight_items(run, shard, weight_format, extra=sizes):
        yield ServerItem(WEIGHTS, name, num_bytes, ARITHMETIC, formulas(name))
    left_over = left_over_bytes(run, shard, weight_format)
    yield ServerItem(NON_TORCH, "left over from loading", left_over, LOAD_CODE, LEFT_OVER)
    yield from adapter_items(run, shard, ADAPTERS_CODE)
