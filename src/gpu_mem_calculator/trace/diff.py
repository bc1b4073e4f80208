"""How an estimate differs from a trace of the same run, entry by entry.

Both are ledgers. A trace has one instant for each phase of each step; the estimate tells one step,
so what is compared is the trace's highest phase with the estimate's highest instant of that phase.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from ..generation.instants import DECODE, PREFILL
from ..ledger.ledger import ACT, CACHE, GPU, KINDS, Entry, Instant, Ledger

LAYERS, ENDS, REST = "layers", "embedding, head and loss", "inputs, masks, rotary tables"
PLACES = (LAYERS, ENDS, REST)
T = TypeVar("T")
WRAPPERS = ("base_model", "base_model.model")  # PEFT's, around the model


class DiffRow(Struct, frozen=True):
    """One thing as both tell it."""

    name: str
    estimate_bytes: int
    trace_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Above 0 where the estimate says more."""
        return self.estimate_bytes - self.trace_bytes


class DiffSide(Struct, frozen=True):
    """An entry of one of the two at its moment."""

    name: str
    bytes: int
    copies: int


class KindDiff(Struct, frozen=True):
    """What a kind of memory is made of on both sides, largest first."""

    row: DiffRow
    estimate: tuple[DiffSide, ...]
    trace: tuple[DiffSide, ...]


class LedgerDiff(Struct, frozen=True, kw_only=True):
    """The whole comparison; rows are sorted by how much they differ."""

    estimate_instant: str  # the moments that are compared, in words
    trace_instant: str
    phases: tuple[DiffRow, ...]  # in the order of the run
    kinds: tuple[KindDiff, ...]
    places: tuple[DiffRow, ...]  # activations by where they are


def difference(
    estimate: Ledger, trace: Ledger, peak_phase: str, phase_peaks: Mapping[str, int]
) -> LedgerDiff:
    """Compare at the trace's highest phase; `phase_peaks` are the estimate's for the phases."""
    there = next(i for i in trace.instants if i.name == peak_phase)
    here = same_instant(estimate, there)
    heights = trace.heights()
    return LedgerDiff(
        estimate_instant=here.title or here.name,
        trace_instant=there.title or there.name,
        phases=tuple(DiffRow(name, peak, int(heights[name])) for name, peak in phase_peaks.items()),
        kinds=tuple(_sorted((_kind(kind, estimate, here, trace, there) for kind in KINDS),
                            lambda kind: kind.row)),
        places=tuple(_sorted(_places(estimate, here, trace, there), lambda row: row)),
    )  # fmt: skip


def same_instant(estimate: Ledger, there: Instant) -> Instant:
    """The estimate's highest instant in the phase (forward, backward, optimizer) of another's;
    a trace has one for all of a generation.
    """
    first = there.name.startswith("s0.")
    heights = estimate.heights()
    phases = (PREFILL, DECODE) if there.phase == DECODE else (there.phase,)
    wanted = [i for i in estimate.instants if i.present and i.phase in phases
              and (first or not i.step)]  # fmt: skip
    return max(wanted, key=lambda i: int(heights[i.name]))


def _sorted(found: Iterable[T], row: Callable[[T], DiffRow]) -> list[T]:
    """By absolute difference, then by size; without what neither has."""
    kept = [one for one in found if row(one).estimate_bytes or row(one).trace_bytes]
    return sorted(kept, key=lambda one: (-abs(row(one).difference_bytes), -row(one).trace_bytes))


def _kind(kind: str, estimate: Ledger, here: Instant, trace: Ledger, there: Instant) -> KindDiff:
    ours, theirs = _alive(estimate, here, kind), _alive(trace, there, kind)
    row = DiffRow(kind, sum(side.bytes for side in ours), sum(side.bytes for side in theirs))
    return KindDiff(row, ours, theirs)


def _alive(ledger: Ledger, instant: Instant, kind: str) -> tuple[DiffSide, ...]:
    """The entries of a kind, those of one name as one."""
    sizes: dict[str, tuple[int, int]] = {}
    for entry in _entries(ledger, kind):
        copies = int(entry.live.get(instant.name, 0))
        size, count = sizes.get(entry.name, (0, 0))
        sizes[entry.name] = size + int(entry.at(instant.name)), count + copies
    sides = [DiffSide(name, size, copies) for name, (size, copies) in sizes.items() if size]
    return tuple(sorted(sides, key=lambda side: -side.bytes))


def _entries(ledger: Ledger, kind: str) -> list[Entry]:
    """Those of a kind; a layer at work has its own cache among its activations."""
    kinds = {ACT: (ACT, CACHE), CACHE: ()}.get(kind, (kind,))
    return [entry for entry in ledger.entries if entry.kind in kinds and entry.place == GPU]


def _places(estimate: Ledger, here: Instant, trace: Ledger, there: Instant) -> list[DiffRow]:
    sums = {place: [0, 0] for place in PLACES}
    for entry in _entries(estimate, ACT):
        sums[place_of_estimate(entry.name)][0] += int(entry.at(here.name))
    for entry in _entries(trace, ACT):
        line = str(entry.source)
        sums[place_of_trace(entry.name, line)][1] += int(entry.at(there.name))
    return [DiffRow(place, ours, theirs) for place, (ours, theirs) in sums.items()]


def place_of_estimate(name: str) -> str:
    """Where an entry of an estimate is, by its name."""
    if re.search(r"\blayers?\b", name):
        return LAYERS
    return ENDS if re.search(r"^final norm|logits|loss|head|embedding(?! dropout)", name) else REST


def place_of_trace(name: str, line: str = "") -> str:
    """Where an entry of a trace is, by its module: `model.layers.*.mlp: mm`.

    Numbered modules are layers. What the outermost module makes itself is the loss, unless the
    batch was made there.
    """
    module, colon, _ = name.partition(": ")
    if not colon or module in WRAPPERS:
        return REST if re.search(r"[/\\]jobs[/\\]", line) else ENDS
    if ".*" in module:
        return LAYERS
    last = module.rpartition(".")[2]
    if re.search(r"rotary|alibi", last):
        return REST
    return ENDS if re.search(r"emb|wte|wpe|norm|ln|head|out|loss|project", last) else REST
