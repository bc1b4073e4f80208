"""x"""

from __future__ import annotations

from itertools import groupby

from ...ledger.remember import remembered
from ...replay.allocator import history
from ...replay.stream import AllocationStream
from ...run.run import Run
from ...weights import WeightFormat
from ...weights.rank_weights import BITS
from ...weights.shards import EMBEDDING, EXPERT, ServerShard, ShardedParameter, held
from .events import StreamRecorder


def left_over_bytes(run: Run, shard: ServerShard, how: WeightFormat) -> int:
    """Reserved but not in use when the model is loaded and the cache was emptied."""
    tape, bits = StreamRecorder(), BITS[run.precision]
    for _, group in groupby(held(run.arch, shard), lambda one: (one.layer, one.joint or one.name)):
        _load_tensor(tape, [(one, sum(size for _, size in how.stored(one, bits))) for one in group])
    return _left_over(tuple(tape.sizes), tuple(tape.events))


def _load_tensor(tape: StreamRecorder, group: list[tuple[ShardedParameter, int]]) -> None:
    """One tensor, or several that become one. An embedding is copied to have a row more."""
    pieces = [tape.make(size) for _, size in group]
    if len(group) > 1:
        tape.make(sum(size for _, size in group))
        tape.free(*pieces)
    elif group[0][0].role == EMBEDDING:
        tape.make(group[0][1] + group[0][0].shape[-1] * 2)
        tape.free(*pieces)
    elif group[0][0].role == EXPERT:  # each by itself, into a tensor that is there
        piece = tape.make(group[0][1] // max(1, group[0][0].shape[0]))
        tape.free(piece)


@remembered(64, always=True)
def _left_over(sizes: tuple[int, ...], events: tuple[int, ...]) -> int:
    """Play it, empty the cache, and see."""
    end = len(events)
    stream = AllocationStream(sizes=[*sizes, 512], events=[*events, len(sizes)], empties=[end])
    allocated, reserved = history(stream)[-1]
    return reserved - allocated
