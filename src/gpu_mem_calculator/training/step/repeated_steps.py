"""The last step of a stream, copied from the one before it.

From the second step on a rank does the same in each: optimizer states and, with ZeRO-3, the order
of gathers are known. So where a step frees as many tensors of the step before it, of the same
sizes, as it leaves, the next one makes the same requests, for other tensors.
`tests/training/step/test_repeated_steps.py` compares with writing the step.
"""

from __future__ import annotations

from typing import NamedTuple

from .stream_phases import Phase
from .stream_writer import StreamWriter

LEAST = 3
"""A stream of fewer steps has no two that are alike: the first one allocates optimizer states."""


class WrittenSize(NamedTuple):
    """How much of a stream is written, `empties` being calls of `empty_cache`."""

    events: int
    tensors: int
    marks: int
    empties: int

    @classmethod
    def of(cls, writer: StreamWriter) -> WrittenSize:
        """What a writer has written so far."""
        stream = writer.stream
        return cls(len(stream.events), len(stream.sizes), len(stream.marks), len(stream.empties))


def repeated_phases(phases: list[Phase], steps: int) -> int:
    """The number of phases of the last step; 0 where it does not visit the same instants as the one
    before it.
    """
    last = [phase for phase in phases if phase.title.startswith(f"s{steps - 1}.")]
    before = phases[-2 * len(last) : -len(last)]
    same = [phase[1:] for phase in last] == [phase[1:] for phase in before]
    return len(last) if steps >= LEAST and last == phases[-len(last) :] and same else 0


def repeat_step(writer: StreamWriter, before: WrittenSize, titles: list[str]) -> bool:
    """Write the step since `before` once more, with other titles of its marks; returns False, and
    writes nothing, where it does not leave alive what it found.
    """
    stream, now = writer.stream, WrittenSize.of(writer)
    shift, later = now.tensors - before.tensors, now.events - before.events
    events = stream.events[before.events :]
    startup_end, _ = stream.marks[0]
    made_at_startup = max(stream.events[:startup_end], default=-1)
    numbers = _next_numbers(events, stream.sizes, before.tensors, shift)
    if stream.uses or numbers is None or min(numbers, default=before.tensors) <= made_at_startup:
        return False  # with its first buckets, of start-up, freed, DDP keeps the next ones
    stream.events += [event + shift if event >= 0 else ~numbers[~event] for event in events]
    stream.sizes += stream.sizes[before.tensors :]
    ends = [end + later for end, _ in stream.marks[before.marks :]]
    stream.marks += zip(ends, titles, strict=True)
    stream.empties += [end + later for end in stream.empties[before.empties :]]
    elsewhere = writer.elsewhere
    again = {t + shift: queue for t, queue in elsewhere.items() if t >= before.tensors}
    elsewhere.update(again)
    return True


def _next_numbers(
    events: list[int], sizes: list[int], first: int, shift: int
) -> dict[int, int] | None:
    """For each tensor that a step frees, the number of the one that the next step frees in its
    place. The step numbers its tensors from `first` on, `shift` of them.

    None where the step does not free as many older tensors, of the same sizes, as it leaves.
    """
    freed = [~event for event in events if event < 0]
    older = sorted(tensor for tensor in freed if tensor < first)
    left = sorted({event for event in events if event >= 0}.difference(freed))
    if [sizes[tensor] for tensor in older] != [sizes[tensor] for tensor in left]:
        return None
    numbers = {tensor: tensor + shift for tensor in freed}
    numbers.update(zip(older, left, strict=True))
    return numbers
