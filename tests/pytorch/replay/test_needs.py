"""The least cap, and properties of any stream."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_mem_calculator.pytorch.replay.needs import CapOutcome, NeedsSearch, needs_bytes
from gpu_mem_calculator.pytorch.replay.replays import history, replay
from gpu_mem_calculator.pytorch.replay.rounding import UNIT
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import UNTIL_MARK, AllocationStream
from tests.pytorch.replay.reference_allocator import reference_history

MIB = 2**20
CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:32,garbage_collection_threshold:0.5",
]


@st.composite
def streams(draw: st.DrawFn) -> AllocationStream:
    """Tensors of many sizes on up to two CUDA streams, freed in any order, or not at all."""
    size = st.one_of(
        st.integers(0, 4096), st.integers(1, 40 * MIB), st.integers(1, 20).map(MIB.__mul__)
    )
    sizes = draw(st.lists(size, min_size=1, max_size=40))
    cuda_streams = draw(st.lists(st.integers(0, 1), min_size=len(sizes), max_size=len(sizes)))
    alive: list[int] = []
    events: list[int] = []
    for tensor in range(len(sizes)):
        events.append(tensor)
        alive.append(tensor)
        for _ in range(draw(st.integers(0, 2))):
            if alive:
                events.append(~alive.pop(draw(st.integers(0, len(alive) - 1))))
    used = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=3, unique=True))
    ends = [draw(st.one_of(st.just(UNTIL_MARK), st.integers(0, len(events)))) for _ in used]
    uses = [(tensor, 5, end) for tensor, end in zip(used, ends, strict=True)]
    marks = [(len(events) // 2, "half"), (len(events), "end")]
    return AllocationStream.of(sizes, events, streams=cuda_streams, marks=marks, uses=uses)


class ForgetfulSearch(NeedsSearch):
    """A search that replays every cap it tries."""

    __slots__ = ()

    def outcome(self, cap: int) -> CapOutcome:
        """The outcome of a replay."""
        self.outcomes.clear()
        return super().outcome(cap)


def freed(stream: AllocationStream) -> AllocationStream:
    """The same stream, after which every live tensor is freed."""
    alive = set(stream.events) - {~event for event in stream.events if event < 0}
    rest = [~tensor for tensor in sorted(t for t in alive if t >= 0)]
    return AllocationStream.of(
        stream.sizes, [*stream.events, *rest], streams=stream.streams, uses=stream.uses
    )


@given(streams(), st.sampled_from(CONFS))
def test_allocated_is_never_more_than_reserved(stream: AllocationStream, conf: str) -> None:
    """At each event; and reserved memory is a number of whole pages."""
    for allocated, reserved in history(stream, AllocatorSettings.parse(conf), 2**40):
        assert 0 <= allocated <= reserved
        assert reserved % (2 * MIB) == 0


@given(streams(), st.sampled_from(CONFS))
def test_a_replay_is_the_same_each_time(stream: AllocationStream, conf: str) -> None:
    """The same stream, settings and cap give the same footprint, event by event or at once."""
    chosen, cap = AllocatorSettings.parse(conf), 200 * MIB
    footprint = replay(stream, chosen, cap)
    assert footprint == replay(stream, chosen, cap)
    steps = history(stream, chosen, cap)
    assert max((allocated for allocated, _ in steps), default=0) == footprint.allocated_bytes


@given(streams(), st.sampled_from(CONFS))
def test_when_everything_is_freed_nothing_is_allocated(stream: AllocationStream, conf: str) -> None:
    """No byte is lost."""
    assert history(freed(stream), AllocatorSettings.parse(conf))[-1][0] == 0


@given(streams())
def test_when_everything_is_freed_reaching_the_cap_releases_everything(
    stream: AllocationStream,
) -> None:
    """Merging leaves whole segments, so a request as large as the cap fits after their release."""
    whole = freed(stream)
    last = len(whole.sizes)
    big = AllocationStream.of(
        [*whole.sizes, 2**40], [*whole.events, last], streams=[*whole.streams, 0], uses=whole.uses
    )
    assert history(big, cap=2**40)[-1] == (2**40, 2**40)


@given(streams(), st.sampled_from(CONFS))
def test_a_replay_at_the_least_cap_survives(stream: AllocationStream, conf: str) -> None:
    """Under the cap that `needs_bytes` returns, no allocation fails."""
    chosen = AllocatorSettings.parse(conf)
    assert replay(stream, chosen, needs_bytes(stream, chosen)).failed_at is None


@given(streams(), st.sampled_from(CONFS))
def test_the_least_cap_is_between_allocated_and_reserved(
    stream: AllocationStream, conf: str
) -> None:
    """No run needs more than it reserves without a cap, or less than it has allocated."""
    chosen = AllocatorSettings.parse(conf)
    uncapped = replay(stream, chosen)
    needs = needs_bytes(stream, chosen)
    assert replay(stream, chosen, needs).allocated_bytes <= needs <= uncapped.reserved_bytes


@given(streams(), st.sampled_from(CONFS), st.lists(st.integers(1, 400), min_size=1, max_size=12))
@settings(deadline=None)
def test_a_known_outcome_is_that_of_a_replay_under_the_same_cap(
    stream: AllocationStream, conf: str, megabytes: list[int]
) -> None:
    """Whatever was replayed before, a cap that is not replayed has the outcome of its replay."""
    chosen = AllocatorSettings.parse(conf)
    search = NeedsSearch(stream, chosen)
    search.needs_bytes()
    for known in tuple(search.outcomes):
        megabytes += [known.most_under * UNIT // MIB, (known.least_over - 1) * UNIT // MIB]
    for size in megabytes:
        cap = min(size, 2**20) * MIB
        if cap // UNIT > search.low:
            alone = replay(stream, chosen, cap)
            outcome = search.outcome(cap // UNIT)
            assert outcome.survives == (alone.failed_at is None)
            if outcome.survives:
                assert outcome.peak_reserved * UNIT == alone.reserved_bytes


@given(streams(), st.sampled_from(CONFS), st.lists(st.integers(1, 400), min_size=1, max_size=12))
@settings(deadline=None)
def test_a_cap_fails_in_the_phase_in_which_its_replay_fails(
    stream: AllocationStream, conf: str, megabytes: list[int]
) -> None:
    """Also where no replay is needed; and a cap below what is alive does not survive."""
    chosen = AllocatorSettings.parse(conf)
    search = NeedsSearch(stream, chosen)
    for size in megabytes:
        alone = replay(stream, chosen, size * MIB)
        expected = None
        if alone.failed_at is not None:
            expected = "half" if alone.failed_at < stream.marks[0][0] else "end"
        assert search.fails_in(size * MIB // UNIT) == expected
        assert search.survives(size * MIB // UNIT) == (expected is None)


@given(streams(), st.sampled_from(CONFS))
@settings(deadline=None)
def test_the_search_finds_what_a_search_that_replays_every_cap_finds(
    stream: AllocationStream, conf: str
) -> None:
    """Outcomes that are known save replays, and change no answer."""
    chosen = AllocatorSettings.parse(conf)
    expected = ForgetfulSearch(stream, chosen).needs_bytes()
    assert NeedsSearch(stream, chosen).needs_bytes() == expected


@given(streams(), st.sampled_from(CONFS))
def test_the_probes_above_the_least_cap_survive(stream: AllocationStream, conf: str) -> None:
    """However a run survives below and dies above, the answer is above the probes that die."""
    chosen = AllocatorSettings.parse(conf)
    search = NeedsSearch(stream, chosen)
    low = search.needs_bytes()
    tried = [known for known in search.outcomes if known.least_over * UNIT > low]
    assert all(known.survives for known in tried if known.most_under * UNIT >= low)


def test_a_run_that_survives_below_and_dies_above_needs_more() -> None:
    """With 120 MiB a released segment makes space; with 121 to 139 it is kept until too late."""
    sizes = [60, 40, 20, 60, 20, 60]
    events = [0, 1, ~0, 2, 3, ~1, 4, 5]
    stream = AllocationStream.of([size * MIB for size in sizes], events)
    most = replay(stream).reserved_bytes
    outcomes = [
        replay(stream, cap=cap).failed_at is None for cap in range(100 * MIB, most + 1, 2 * MIB)
    ]
    needs = needs_bytes(stream)
    above = [
        ok
        for cap, ok in zip(range(100 * MIB, most + 1, 2 * MIB), outcomes, strict=True)
        if cap >= needs
    ]
    assert all(above)


@given(streams(), st.sampled_from(CONFS))
def test_the_search_continues_to_the_footprint_without_a_cap(
    stream: AllocationStream, conf: str
) -> None:
    """Where the search starts, the replay without a cap continues, with the same statistics."""
    chosen = AllocatorSettings.parse(conf)
    assert NeedsSearch(stream, chosen).unlimited == replay(stream, chosen)


def test_an_empty_stream_needs_nothing() -> None:
    """A stream without events needs 0 bytes."""
    assert needs_bytes(AllocationStream.of([], [])) == 0


def test_a_run_whose_cache_can_be_released_needs_only_its_live_tensors() -> None:
    """Whole free segments are released when the next one does not fit."""
    stream = AllocationStream.of([100 * MIB, 120 * MIB], [0, ~0, 1])
    assert replay(stream).reserved_bytes == 220 * MIB
    assert needs_bytes(stream) == pytest.approx(120 * MIB, rel=0.002)


def test_fragments_that_stay_are_needed() -> None:
    """A segment with a block in use cannot be released, so the run needs it and the next one."""
    stream = AllocationStream.of([s * MIB for s in (100, 20, 100)], [0, ~0, 1, 2])
    assert needs_bytes(stream) == pytest.approx(200 * MIB, rel=0.002)


@settings(max_examples=300)
@given(streams(), st.sampled_from(CONFS), st.booleans(), st.one_of(st.none(), st.integers(2, 150)))
def test_the_fast_model_equals_the_reference(
    stream: AllocationStream, conf: str, fraction: bool, cap: int | None
) -> None:
    """After each event, under any cap of either kind, both have the same bytes allocated and
    reserved.
    """
    stream.uses = []
    chosen = replace(AllocatorSettings.parse(conf), memory_fraction=fraction)
    most = None if cap is None else cap * 2 * MIB
    assert history(stream, chosen, most) == reference_history(stream, chosen, most)


class KnownCaps(NeedsSearch):
    """A search whose answers about caps are given: 10,101 to 10,200 and from 10,400 on survive."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def survives(self, cap: int) -> bool:
        """As given."""
        return 10_100 < cap <= 10_200 or cap >= 10_400


def test_the_answer_is_below_the_first_probe_that_survives_above_failing_ones() -> None:
    """The probes are 1, 2 and 4 % above 10,000, and only the first fails."""
    assert 10_100 < KnownCaps()._above_failing_probes(10_000, 20_000) <= 10_200


def test_tensors_that_grow_with_every_batch() -> None:
    """Logits of all batches, joined anew: their free blocks do not use up the addresses."""
    one, batches = 1280 * MIB, 1500
    sizes = [one * (batch + 1) for batch in range(batches)]
    events = [event for batch in range(1, batches) for event in (batch, ~(batch - 1))]
    stream = AllocationStream.of(sizes, [0, *events], marks=[(2 * batches - 1, "end")])
    peak = sizes[-1] + sizes[-2]
    search = NeedsSearch(stream, AllocatorSettings())
    assert search.unlimited.phases["end"].peak_bytes == peak
    assert peak <= search.needs_bytes() <= search.unlimited.reserved_bytes
