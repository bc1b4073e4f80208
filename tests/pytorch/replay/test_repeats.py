"""Windows that repeat are skipped, and nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.pytorch.replay import allocator
from gpu_mem_calculator.pytorch.replay.allocator import ReplayRun
from gpu_mem_calculator.pytorch.replay.footprint import Footprint
from gpu_mem_calculator.pytorch.replay.plan import ReplayPlan
from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

MIB = 2**20
CONFS = ["", "expandable_segments:True", "max_split_size_mb:32", "garbage_collection_threshold:0.6"]


@st.composite
def steps(draw: st.DrawFn) -> AllocationStream:
    """Weights, then the same step several times, after which some tensors of it stay a step."""
    size = st.one_of(st.integers(1, 40 * MIB), st.integers(1, 20).map(MIB.__mul__))
    weights, step = draw(st.lists(size, max_size=4)), draw(st.lists(size, min_size=1, max_size=12))
    order = draw(st.permutations(range(len(step))))
    late = draw(st.sets(st.integers(0, len(step) - 1), max_size=3))
    inside = [draw(st.integers(0, 2)) for _ in step]
    stream = AllocationStream.of(sizes=list(weights), events=list(range(len(weights))))
    stream.marks.append((len(weights), "startup"))
    before: list[int] = []
    for number in range(draw(st.integers(2, 6))):
        first = len(stream.sizes)
        stream.sizes.extend(step)
        waiting = [first + i for i in order if i not in late]
        for i in range(len(step)):
            stream.events.append(first + i)
            if i == len(step) // 2:
                stream.events.extend(~tensor for tensor in before)
            for _ in range(inside[i]):
                born = [tensor for tensor in waiting if tensor <= first + i]
                if born:
                    waiting.remove(born[0])
                    stream.events.append(~born[0])
        stream.events.extend(~tensor for tensor in waiting)
        before = [first + i for i in sorted(late)]
        stream.marks.append((len(stream.events), f"step {number}"))
    return stream


def without_skipping(
    stream: AllocationStream, settings: AllocatorSettings, cap: int | None
) -> Footprint:
    """The footprint of a replay of every event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "repeated_window", lambda *_: None)
        return replay(stream, settings, cap)


@given(steps(), st.sampled_from(CONFS), st.one_of(st.none(), st.integers(2, 400)))
def test_skipping_changes_nothing(stream: AllocationStream, conf: str, cap: int | None) -> None:
    """Every figure, phase, retry and failure is that of a replay of every event."""
    settings, limit = AllocatorSettings.parse(conf), None if cap is None else cap * MIB
    assert replay(stream, settings, limit) == without_skipping(stream, settings, limit)


def test_a_step_that_repeats_is_skipped() -> None:
    """The second step finds the blocks of the first, so later ones are not replayed."""
    stream = AllocationStream.of(sizes=[30 * MIB] * 12, events=[])
    for step in range(6):
        stream.events.extend((2 * step, 2 * step + 1, ~(2 * step), ~(2 * step + 1)))
        stream.marks.append((len(stream.events), f"step {step}"))
    run = ReplayRun(ReplayPlan(stream, AllocatorSettings()))
    assert run.finish()
    blocks = run.cache.tensors
    assert blocks[2:] == [blocks[2], blocks[3]] * 5
    assert list(run.phases) == [f"step {step}" for step in range(6)]
    assert len({id(state.pools) for state in run.states}) == 2


def test_expandable_segments_come_and_go_without_end() -> None:
    """Each step's segment is released whole; addresses of released ones are used again."""
    stream = AllocationStream.of(sizes=[30 * MIB] * 600, events=[])
    for step in range(600):
        stream.events.extend((step, ~step))
        stream.empties.append(len(stream.events))
    found = replay(stream, AllocatorSettings.parse("expandable_segments:True"))
    assert (found.failed_at, found.reserved_bytes) == (None, 40 * MIB)
