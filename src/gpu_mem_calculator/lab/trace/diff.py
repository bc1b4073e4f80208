"""How an estimate differs from a trace of the same run, entry by entry.

Both are ledgers. A trace has one instant for each phase of each step, the estimate those of one
step. The trace's highest phase is compared with the estimate's highest instant of that phase.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from ...ledger.ledger import ACT, CACHE, GPU, KINDS, Entry, Instant, Ledger
from ...training.generation.instants import DECODE, PREFILL

LAYERS, ENDS, REST = "layers", "embedding, head and loss", "inputs, masks, rotary tables"
PLACES = (LAYERS, ENDS, REST)
T = TypeVar("T")
WRAPPERS = ("base_model", "base_model.model")  # PEFT's modules around the model


class DiffRow(Struct, frozen=True):
    """Bytes of one phase, kind or place in both ledgers."""

    name: str
    estimate_bytes: int
    trace_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Estimate minus trace, in bytes."""
        return self.estimate_bytes - self.trace_bytes


class DiffSide(Struct, frozen=True):
    """An entry of one ledger at the compared instant."""

    name: str
    bytes: int
    copies: int


class KindDiff(Struct, frozen=True):
    """The entries of one kind of memory in both ledgers, largest first."""

    row: DiffRow
    estimate: tuple[DiffSide, ...]
    trace: tuple[DiffSide, ...]


class LedgerDiff(Struct, frozen=True, kw_only=True):
    """The whole comparison; rows are sorted by how much they differ."""

    estimate_instant: str  # the titles of the compared instants
    trace_instant: str
    phases: tuple[DiffRow, ...]  # in the order of the run
    kinds: tuple[KindDiff, ...]
    places: tuple[DiffRow, ...]  # activations by place


def difference(
    estimate: Ledger, trace: Ledger, peak_phase: str, phase_peaks: Mapping[str, int]
) -> LedgerDiff:
    """Compare two ledgers at the trace's highest phase.

    `phase_peaks` are the estimate's peak bytes of each phase of the trace.
    """
    at_trace = next(i for i in trace.instants if i.name == peak_phase)
    at_estimate = same_instant(estimate, at_trace)
    heights = trace.heights()
    return LedgerDiff(
        estimate_instant=at_estimate.title or at_estimate.name,
        trace_instant=at_trace.title or at_trace.name,
        phases=tuple(DiffRow(name, peak, int(heights[name])) for name, peak in phase_peaks.items()),
        kinds=tuple(
            _sorted(
                (_kind(kind, estimate, at_estimate, trace, at_trace) for kind in KINDS),
                lambda kind: kind.row,
            )
        ),
        places=tuple(_sorted(_places(estimate, at_estimate, trace, at_trace), lambda row: row)),
    )


def same_instant(estimate: Ledger, instant: Instant) -> Instant:
    """The estimate's highest instant in the phase (forward, backward, optimizer) of a trace's.

    A trace has one instant for all of a generation.
    """
    first = instant.name.startswith("s0.")
    heights = estimate.heights()
    phases = (PREFILL, DECODE) if instant.phase == DECODE else (instant.phase,)
    present = [i for i in estimate.instants if i.present and i.phase in phases]
    candidates = [i for i in present if first or not i.step]
    return max(candidates, key=lambda i: int(heights[i.name]))


def _sorted(items: Iterable[T], row: Callable[[T], DiffRow]) -> list[T]:
    """Sorted by absolute difference, then by size; without rows that are 0 in both."""
    nonzero = [item for item in items if row(item).estimate_bytes or row(item).trace_bytes]
    return sorted(
        nonzero, key=lambda item: (-abs(row(item).difference_bytes), -row(item).trace_bytes)
    )


def _kind(
    kind: str, estimate: Ledger, estimate_instant: Instant, trace: Ledger, trace_instant: Instant
) -> KindDiff:
    in_estimate = _alive(estimate, estimate_instant, kind)
    in_trace = _alive(trace, trace_instant, kind)
    sums = (sum(side.bytes for side in sides) for sides in (in_estimate, in_trace))
    return KindDiff(DiffRow(kind, *sums), in_estimate, in_trace)


def _alive(ledger: Ledger, instant: Instant, kind: str) -> tuple[DiffSide, ...]:
    """The entries of a kind at an instant; those of one name are summed."""
    sizes: dict[str, tuple[int, int]] = {}
    for entry in _entries(ledger, kind):
        copies = int(entry.live.get(instant.name, 0))
        size, count = sizes.get(entry.name, (0, 0))
        sizes[entry.name] = size + int(entry.at(instant.name)), count + copies
    sides = [DiffSide(name, size, copies) for name, (size, copies) in sizes.items() if size]
    return tuple(sorted(sides, key=lambda side: -side.bytes))


def _entries(ledger: Ledger, kind: str) -> list[Entry]:
    """The entries of a kind on the GPU; the cache counts as activations."""
    kinds = {ACT: (ACT, CACHE), CACHE: ()}.get(kind, (kind,))
    return [entry for entry in ledger.entries if entry.kind in kinds and entry.place == GPU]


def _places(
    estimate: Ledger, estimate_instant: Instant, trace: Ledger, trace_instant: Instant
) -> list[DiffRow]:
    sums = {place: [0, 0] for place in PLACES}
    for entry in _entries(estimate, ACT):
        sums[place_of_estimate(entry.name)][0] += int(entry.at(estimate_instant.name))
    for entry in _entries(trace, ACT):
        line = str(entry.source)
        sums[place_of_trace(entry.name, line)][1] += int(entry.at(trace_instant.name))
    return [DiffRow(place, *pair) for place, pair in sums.items()]


def place_of_estimate(name: str) -> str:
    """The place of an estimate's activation, by its name."""
    if re.search(r"\blayers?\b", name):
        return LAYERS
    return ENDS if re.search(r"^final norm|logits|loss|head|embedding(?! dropout)", name) else REST


def place_of_trace(name: str, line: str = "") -> str:
    """The place of a trace's activation, by its module: `model.layers.*.mlp: mm`.

    Numbered modules are layers. Tensors of the outermost module are the loss, unless `line` is in
    `jobs/`, which makes the batch.
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
