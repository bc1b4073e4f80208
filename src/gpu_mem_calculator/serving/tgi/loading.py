"""Memory that torch reserves after loading without using it.

TGI moves each projection to the GPU, concatenates q, k and v, and gate and up, and frees the
pieces. The cached segments that the concatenated tensors partly occupy cannot be released.

text-generation-inference 3.3.7 server/text_generation_server/utils/weights.py get_multi_weights_col
and layers/tensor_parallel.py TensorParallelEmbedding.
"""

from __future__ import annotations

from itertools import groupby

from ...ledger.remember import remembered
from ...pytorch.replay.allocator import history
from ...pytorch.replay.stream import AllocationStream
from ...run.run import Run
from ...run.weights import WeightFormat
from ...run.weights.rank_weights import BITS
from ...run.weights.shards import EMBEDDING, EXPERT, ServerShard, ShardedParameter, held
from .events import StreamRecorder


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
    stream = AllocationStream(sizes=[*sizes, 512], events=[*events, len(sizes)], empties=[end])
    allocated, reserved = history(stream)[-1]
    return reserved - allocated
