"""A recording as a ledger: the tensors alive at the peak of every phase."""

from __future__ import annotations

import re
from collections import Counter

from ...ledger.ledger import RUNTIME, Entry, Instant, Ledger
from ...ledger.num import sized
from ...ledger.source import code
from ...pytorch.replay.footprint import Footprint
from ...pytorch.replay.stream import AllocationStream
from ...tools.translation.arguments import tables
from ..jobs.phases import parse
from .storages import StorageMaker

# Name of a phase -> that of the ledger, and its title.
PHASES: dict[str, tuple[str, str]] = tables(__file__)["phases"]
BLOCK = 512  # torch rounds every request up to this


def title(name: str) -> str:
    """The title of a phase: s1.a0.bwd is the backward of the first micro-batch of step 2."""
    phase = parse(name)
    if phase is None:
        return PHASES[name][1]
    micro = f", micro-batch {phase.micro_batch + 1}" if phase.micro_batch else ""
    return f"step {phase.step + 1}{micro}: {PHASES[phase.kind][1]}"


def ledger_of(
    stream: AllocationStream, makers: list[StorageMaker], kinds: list[str], footprint: Footprint
) -> Ledger:
    """The ledger of a recording: one instant for each phase's peak, one entry for equal tensors."""
    instants, alive = [], {}
    for name, numbers in tensors_at_peaks(stream).items():
        end = name.rpartition(".")[2]
        instants.append(Instant(name=name, phase=PHASES[end][0], title=title(name)))
        alive[name] = Counter(_entry_key(stream, makers, kinds, number) for number in numbers)
    entries = []
    for key in sorted({key for count in alive.values() for key in count}):
        kind, entry_name, size, line = key
        live = {at: count[key] for at, count in alive.items() if key in count}
        source = code(line or "torch")
        bytes_ = sized(size, 8)
        entries.append(Entry(name=entry_name, kind=kind, bytes=bytes_, live=live, source=source))
    return Ledger(tuple(instants), (*entries, *_rounding(entries, footprint)))


def tensors_at_peaks(stream: AllocationStream) -> dict[str, set[int]]:
    """For each phase, the tensors alive at its peak."""
    peaks: dict[str, set[int]] = {}
    alive: set[int] = set()
    start = 0
    for end, name in stream.marks:
        peaks[name] = _tensors_at_peak(stream, alive, start, end)
        _apply_events(stream, alive, start, end)
        start = end
    return peaks


def _apply_events(stream: AllocationStream, alive: set[int], start: int, end: int) -> None:
    for event in stream.events[start:end]:
        if event >= 0:
            alive.add(event)
        else:
            alive.discard(~event)


def _tensors_at_peak(stream: AllocationStream, alive: set[int], start: int, end: int) -> set[int]:
    total = peak = 0
    peak_index = start
    for index, event in enumerate(stream.events[start:end], start + 1):
        if event >= 0:
            total += -(-stream.sizes[event] // BLOCK)
            if total > peak:
                peak, peak_index = total, index
        else:
            total -= -(-stream.sizes[~event] // BLOCK)
    tensors = set(alive)
    _apply_events(stream, tensors, start, peak_index)
    return tensors


EntryKey = tuple[str, str, int, str]


def _entry_key(
    stream: AllocationStream, makers: list[StorageMaker], kinds: list[str], number: int
) -> EntryKey:
    """What the tensors of one entry have in common: kind, name, bytes, line."""
    maker = makers[number]
    module = re.sub(r"\.\d+(?=\.|$)", ".*", maker.module)
    op = maker.op.rpartition("::")[2]
    name = f"{module}: {op}" if module else op
    name += " (backward)" if maker.backward else ""
    return kinds[number], name, stream.sizes[number], maker.line


def _rounding(entries: list[Entry], footprint: Footprint) -> list[Entry]:
    """The bytes of allocator blocks beyond the requests in them, at each peak."""
    rest = {}
    for name, phase in footprint.phases.items():
        requested = sum(int(entry.at(name)) for entry in entries)
        rest[name] = phase.peak_bytes - requested
    source = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp round_size, should_split")
    byte, name = sized(1, 8), "rounding up to blocks"
    return [Entry(name=name, kind=RUNTIME, bytes=byte, live=rest, source=source)]
