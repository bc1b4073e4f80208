"""A ledger as a stream of allocations and frees: start-up, then whole steps, layer by layer.

Between two instants, entries that are no longer alive are freed and new ones are allocated; where a
block runs, its events are written. So at every instant as many bytes are alive as the ledger says.

From the second step on a rank does the same in each: optimizer states and, with ZeRO-3, the order
of gathers are known. So where a step frees as many tensors of the step before it, of the same
sizes, as it leaves, the next one makes the same requests, for other tensors: the last step is
copied. `tests/training/step/test_repeated_steps.py` compares with writing it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import LATER, MIDDLE, Ledger
from ...ledger.remember import remembered
from ...pytorch.replay.stream import AllocationStream
from ...run.phases import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    GENERATING,
    GENERATION,
    OPTIMIZER,
    SAVING,
    STARTUP,
)
from .cycles import shifted, visit_all
from .refill import Equal, Repeated, WrittenStream
from .stream_phases import Phase
from .stream_writer import StreamWriter

# A stream of fewer steps has no two that are alike: the first one allocates optimizer states.
LEAST = 3
BETWEEN = {EVALUATION: "eval", GENERATING: "text", SAVING: "save"}  # two steps, and their marks
STEPS = 3  # from the second on optimizer states exist; the third reuses the second's memory
STARTUP_MARK = "startup"
KEPT = 2  # streams of runs that are alike: short and long sequences often have other events


def allocation_stream(
    ledger: Ledger, micro_batches: int, steps: int = STEPS, *, tight: bool = False
) -> AllocationStream:
    """The allocations and frees of an unrolled ledger's rank, with a mark after every phase.

    `tight`: as on a GPU that is too small for how the engine usually allocates, where the engine
    then allocates otherwise.
    """
    return _write(ledger, micro_batches, steps, tight=tight).written()


def refilled_stream(
    like: object, ledger: Ledger, micro_batches: int, *, tight: bool = False
) -> AllocationStream:
    """The same, of a run that differs from all others that are `like` it in its tokens alone: where
    the stream of another one is written, its sizes are filled in anew.
    """
    known = _written_before(like, tight)
    for number, written in enumerate(known):
        if stream := written.refilled(ledger):
            known.insert(0, known.pop(number))
            return stream
    writer = _write(ledger, micro_batches, tight=tight)
    stream = writer.written()
    if writer.refills:
        written = WrittenStream(ledger, stream, writer.origins, writer.named_by_engine)
        known[:] = [written, *known[: KEPT - 1]]
    return stream


def written_stream(like: object, stream: AllocationStream) -> WrittenStream | None:
    """Where a stream was written, or another one of the same events."""
    known = _written_before(like, False)
    return next((one for one in known if one.stream.events is stream.events), None)


@remembered(16)
def _written_before(like: object, tight: bool) -> list[WrittenStream]:
    """Where the last streams are kept that were written for runs that are `like` this."""
    return []


def _write(
    ledger: Ledger, micro_batches: int, steps: int = STEPS, *, tight: bool = False
) -> StreamWriter:
    """A writer that has written the stream."""
    usual = ledger.writer or StreamWriter
    writer = (ledger.tight or usual if tight else usual)(ledger)
    assert isinstance(writer, StreamWriter)
    phases = writer.order(list(_phases(ledger, micro_batches, steps)), micro_batches)
    last = repeated_phases(phases, steps)
    zeroed_after = FORWARD if ledger.old_grads else OPTIMIZER
    first_step = next((n for n, phase in enumerate(phases) if phase.kind == OPTIMIZER), 0)
    for number in range(len(phases) - last):
        if number == len(phases) - 2 * last:
            before = WrittenSize.of(writer)
        writer.first = number <= first_step
        _write_phase(writer, phases, number, zeroed_after)
    if last and not repeat_step(writer, before, [phase.title for phase in phases[-last:]]):
        writer.first = False
        for number in range(len(phases) - last, len(phases)):
            _write_phase(writer, phases, number, zeroed_after)
    return writer


def _write_phase(writer: StreamWriter, phases: list[Phase], number: int, zeroed_after: str) -> None:
    """Write a phase and its mark, and the frees of gradients after the phase `zeroed_after`: behind
    its mark, unless something else than a step follows.
    """
    phase = phases[number]
    writer.begin(phase)
    visit_all(writer, phase.names)
    # after the last step, as if another one followed
    later = chain(range(number + 1, len(phases)), range(1, len(phases)))
    following = next(name for n in later for name in phases[n].names)
    writer.first = writer.first and phase.kind != OPTIMIZER
    zeroes = phase.kind == zeroed_after and phase.micro_batch == 0
    writer.leave(following, gradients=not zeroes)
    between = number + 1 < len(phases) and phases[number + 1].kind in BETWEEN
    if zeroes and between:
        if not writer.gradients_wait:
            writer.leave(following, gradients=True)
        writer.zero_grad()
    writer.mark(phase)
    if zeroes and not between:
        writer.zero_grad()


def _phases(ledger: Ledger, micro_batches: int, steps: int) -> Iterator[Phase]:
    """The phases in order: start-up; for each step, forward and backward of each micro-batch."""
    starts = [i.name for i in ledger.instants if i.phase == STARTUP and i.present]
    yield Phase(STARTUP_MARK, starts, STARTUP)
    again = any(i.phase == GENERATION and i.micro_batch for i in ledger.instants)
    words = ((FORWARD, "fwd"), (BACKWARD, "bwd"))
    each = [
        Phase(f"a{n}.{word}", list(_names(ledger, kind, _tag(n, micro_batches))), kind, n)
        for n in range(micro_batches)
        for kind, word in (((GENERATION, "gen"), *words) if n and again else words)
    ]
    before = list(_names(ledger, GENERATION))
    first = [Phase("gen", before, GENERATION)] if before else []
    end = Phase("opt", list(_names(ledger, OPTIMIZER)), OPTIMIZER)
    after = ((kind, word, list(_names(ledger, kind))) for kind, word in BETWEEN.items())
    last = [Phase(word, names, kind) for kind, word, names in after if names]
    for step in range(steps):
        for phase in (*first, *each, end, *last):
            yield replace(phase, title=f"s{step}.{phase.title}")


def _tag(number: int, micro_batches: int) -> str:
    """Which micro-batch of a step it is: the first (""), the last, or one between them."""
    return "" if number == 0 else LATER if number == micro_batches - 1 else MIDDLE


def _names(ledger: Ledger, phase: str, tag: str = "") -> Iterator[str]:
    """The names of a phase's instants in one micro-batch. Where the ledger has none for those in
    the middle, they have the last one's; where it has none for this either, the first's.
    """
    usual = [i for i in ledger.instants if i.phase == phase and i.present and not i.step]
    for wanted in (tag, LATER) if tag else ():
        tagged = [i for i in usual if i.micro_batch == wanted]
        if tagged:
            return (i.name for i in tagged)
    return (i.name for i in usual if not i.micro_batch)


class WrittenSize(Struct, frozen=True):
    """How much of a stream is written, and what is alive. `empties`: calls of `empty_cache`."""

    events: int
    tensors: int
    marks: int
    visits: int
    empties: int
    alive: list[int]

    @classmethod
    def of(cls, writer: StreamWriter) -> WrittenSize:
        """What a writer has written so far, between two steps."""
        stream = writer.stream
        tensors, alive = len(writer.sizes), sorted(writer.alive_tensors())
        counts = len(stream.marks), len(stream.visits), len(stream.empties)
        return cls(len(writer.events), tensors, *counts, alive)


def repeated_phases(phases: list[Phase], steps: int) -> int:
    """The number of phases of the last step; 0 where it does not visit the same instants as the one
    before it.
    """
    last = [phase for phase in phases if phase.title.startswith(f"s{steps - 1}.")]
    before = phases[-2 * len(last) : -len(last)]
    same = [replace(one, title="") for one in last] == [replace(one, title="") for one in before]
    return len(last) if steps >= LEAST and last == phases[-len(last) :] and same else 0


def repeat_step(writer: StreamWriter, before: WrittenSize, titles: list[str]) -> bool:
    """Write the step since `before` once more, with other titles of its marks; returns False, and
    writes nothing, where it does not leave alive what it found: as many older tensors freed, of the
    same sizes, as new ones left.
    """
    stream, now = writer.stream, WrittenSize.of(writer)
    shift, later = now.tensors - before.tensors, now.events - before.events
    startup_end, _ = stream.marks[0]
    made_at_startup = max(writer.events[:startup_end], default=-1)
    older = sorted({*before.alive}.difference(now.alive))
    left = sorted({*now.alive}.difference(before.alive))
    same = [writer.sizes[tensor] for tensor in older] == [writer.sizes[tensor] for tensor in left]
    if stream.uses or not same or min(older, default=before.tensors) <= made_at_startup:
        return False  # with its first buckets, of start-up, freed, DDP keeps the next ones
    events = writer.events[before.events :]
    moved = shifted(events, shift)
    following = dict(zip((~tensor for tensor in older), (~tensor for tensor in left), strict=True))
    writer.events += array("q", map(following.get, events, moved)) if older else moved
    writer.sizes += writer.sizes[before.tensors :]
    marked = [end + later for end, _ in stream.marks[before.marks :]]
    stream.marks += zip(marked, titles, strict=True)
    stream.visits += [(name, end + later) for name, end in stream.visits[before.visits :]]
    stream.empties += [end + later for end in stream.empties[before.empties :]]
    writer.origins += (Equal(older, left), Repeated(before.tensors, now.tensors, 1))
    return True
