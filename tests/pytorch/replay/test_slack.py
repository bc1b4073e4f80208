"""The slack of blocks is a bound: never exceeded, and reached."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.pytorch.replay.plan import ReplayPlan
from gpu_mem_calculator.pytorch.replay.replays import history
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.slack import slack_at_start, slack_bytes
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
)
SIZES = st.one_of(st.integers(0, 4096), st.integers(1, 3 * MIB), st.integers(MIB, 100 * MIB))


@st.composite
def streams(draw: st.DrawFn) -> AllocationStream:
    """Tensors that are allocated, and freed in any order."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=40))
    events: list[int] = []
    alive: list[int] = []
    for tensor in range(len(sizes)):
        events.append(tensor)
        alive.append(tensor)
        for _ in range(draw(st.integers(0, 2))):
            if alive:
                events.append(~alive.pop(draw(st.integers(0, len(alive) - 1))))
    return AllocationStream.of(sizes, events, marks=[(0, "startup"), (len(events), "step")])


@pytest.mark.parametrize("conf", CONFS)
@given(stream=streams())
@settings(deadline=None)
def test_blocks_never_exceed_the_bound(conf: str, stream: AllocationStream) -> None:
    """At every event, with any settings."""
    chosen = AllocatorSettings.parse(conf)
    most = slack_bytes(stream, ReplayPlan(stream, chosen))
    requested = 0
    for event, (allocated, _) in zip(stream.events, history(stream, chosen), strict=True):
        requested += stream.sizes[event] if event >= 0 else -stream.sizes[~event]
        assert 0 <= allocated - requested <= most


def _slack(sizes: list[int], events: list[int], conf: str = "") -> int:
    stream = AllocationStream.of(sizes, events, marks=[(0, "startup")])
    return slack_bytes(stream, ReplayPlan(stream, AllocatorSettings.parse(conf)))


def test_a_small_block_is_rounded_to_512_bytes() -> None:
    """The block of 1 byte exceeds it by 511."""
    assert _slack([1], [0]) == 511


def test_a_large_block_may_keep_a_mebibyte() -> None:
    """A rest of at most 1 MiB is not split off."""
    assert _slack([30 * MIB, 29 * MIB], [0, ~0, 1]) == MIB


def test_expandable_segments_split_everything() -> None:
    """Only rounding counts."""
    assert _slack([30 * MIB - 1], [0], "expandable_segments:True") == 1


def test_only_blocks_alive_together_count() -> None:
    """Two blocks in sequence have no more slack than one."""
    assert _slack([1, 1], [0, ~0, 1, ~1]) == 511


def test_blocks_of_start_up_count_while_alive() -> None:
    """Blocks that start-up leaves are alive in the steps; those that it frees are not."""
    stream = AllocationStream.of([1, 1, 1], [0, 1, ~1, 2], marks=[(3, "startup"), (4, "step")])
    assert slack_bytes(stream, ReplayPlan(stream, AllocatorSettings())) == 2 * 511


@given(stream=streams(), share=st.integers(0, 40))
@settings(deadline=None)
def test_the_slack_at_the_end_of_start_up_is_within_the_bound(
    stream: AllocationStream, share: int
) -> None:
    """Blocks that exceed their tensors by no more need no look at the rest of the stream."""
    begin = min(share, len(stream.events))
    stream.marks = [(begin, "startup"), (len(stream.events), "step")]
    plan = ReplayPlan(stream, AllocatorSettings())
    assert 0 <= slack_at_start(stream, plan) <= slack_bytes(stream, plan)
