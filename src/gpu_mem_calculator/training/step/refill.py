"""A stream again with other sizes: of a run with other micro-batches or sequences.

They seldom decide what is allocated and freed, but how much: the events are kept, and each size
that the tokens decide is filled in by its origin.
That the ledgers are alike in all but sizes is compared, and so are sizes by which the writer chose.
`tests/training/step/test_refill.py` compares with writing the stream.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import GPU, Entry, Ledger
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.replay.stream import AllocationStream
from .block_events import BlockRun


class SizedByBlock(NamedTuple):
    """From tensor `begin` on sizes are those of a block's tensors, or one is that of a `tensor`."""

    begin: int
    block: BlockEvents
    tensor: int | None = None


class SizedByEntry(NamedTuple):
    """The tensors from `begin` to `end` are those of the GPU's entry with this number."""

    begin: int
    end: int
    entry: int


class SizedByWriter(NamedTuple):
    """A tensor is the writer's own with this number."""

    tensor: int
    number: int


class SizedAs(NamedTuple):
    """A tensor is as large as another one."""

    tensor: int
    other: int


class Repeated(NamedTuple):
    """The tensors from `begin` to `end` are made again `times` times, with the same sizes."""

    begin: int
    end: int
    times: int


class Equal(NamedTuple):
    """Tensors whose sizes were found equal, and decided what is written."""

    tensors: Sequence[int]
    others: Sequence[int]


Origin: TypeAlias = SizedByBlock | SizedByEntry | SizedByWriter | SizedAs | Repeated | Equal


def tensor_bytes(entry: Entry, *, scaled: bool = False) -> list[int]:
    """Bytes of each tensor of an entry; they sum to the entry's.

    `scaled`: a given parameter count overrides the architecture's. It scales the entry's bytes, so
    the tensors are scaled to them.
    """
    total = int(entry.bytes)
    sizes = [total] if entry.tensors is None else [int(size) for size in entry.tensors()]
    if scaled and (whole := sum(sizes)):
        ends = [so_far * total // whole for so_far in accumulate(sizes)]
        sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == total, f"{entry.name}: tensors of {sum(sizes):,} B, entry of {total:,} B"
    return sizes


class WrittenStream(Struct, frozen=True):
    """A stream, the ledger that it was written from, and the origins of its sizes in order.

    `named`: kind and name of tensors that the engine makes beside entries and blocks.
    """

    ledger: Ledger
    stream: AllocationStream
    origins: Sequence[Origin]
    named: Mapping[int, tuple[str, str]] = {}

    def refilled(self, ledger: Ledger) -> AllocationStream | None:
        """The stream of another ledger; None where it has to be written. Events and marks are the
        same objects.
        """
        scripts = _matching_scripts(self.ledger, ledger)
        if scripts is None:
            return None
        entries, known = gpu_entries(ledger), gpu_entries(self.ledger)
        changed = {i: new for i, new in enumerate(entries) if new is not known[i]}
        sizes = self._sizes(ledger, changed, scripts)
        if sizes is None:
            return None
        return self.stream if sizes == self.stream.sizes else replace(self.stream, sizes=sizes)

    def _sizes(
        self, ledger: Ledger, changed: Mapping[int, Entry], scripts: Mapping[int, BlockEvents]
    ) -> array[int] | None:
        """The sizes by their origins; None where some that were equal are not. `changed`: by their
        numbers, the entries that are others.
        """
        sizes = self.stream.sizes[:]
        for origin in self.origins:
            if isinstance(origin, SizedByBlock):
                begin, block, tensor = origin
                new = scripts[id(block)].size_array
                if tensor is None:
                    sizes[begin : begin + len(new)] = new
                else:
                    sizes[begin] = new[tensor]
            elif isinstance(origin, SizedByEntry):
                begin, end, number = origin
                if number in changed:
                    new = array("q", tensor_bytes(changed[number], scaled=ledger.scaled))
                    if len(new) != end - begin:
                        return None
                    sizes[begin:end] = new
            elif isinstance(origin, Repeated):
                begin, end, times = origin
                sizes[end : end + times * (end - begin)] = sizes[begin:end] * times
            elif isinstance(origin, SizedByWriter):
                sizes[origin.tensor] = ledger.own[origin.number]
            elif isinstance(origin, SizedAs):
                sizes[origin.tensor] = sizes[origin.other]
            elif any(sizes[a] != sizes[b] for a, b in zip(*origin, strict=True)):
                return None
        return sizes


def gpu_entries(ledger: Ledger) -> list[Entry]:
    """The entries that a stream has."""
    return [entry for entry in ledger.entries if entry.place == GPU]


def _matching_scripts(old: Ledger, new: Ledger) -> dict[int, BlockEvents] | None:
    """For each script of a ledger, by its identity, that of another one which has the same events;
    None where the ledgers differ in more than sizes.
    """
    known, asked = (
        (one.instants, one.old_grads, one.scaled, list(one.plays), len(one.own), one.schedule)
        for one in (old, new)
    )
    entries, others = gpu_entries(old), gpu_entries(new)
    if known != asked or len(entries) != len(others):
        return None
    pairs: list[tuple[object, object]] = []
    for play, other in zip(old.plays.values(), new.plays.values(), strict=True):
        assert isinstance(play, BlockRun)
        assert isinstance(other, BlockRun)
        if replace(other, script=play.script, once=play.once) != play:
            return None
        pairs += ((play.script, other.script), (play.once, other.once))
    for entry, another in zip(entries, others, strict=True):
        if not _alike_entries(entry, another):
            return None
        pairs.append((entry.script, another.script))
    return _scripts(pairs, weights=old.schedule is None)


def _alike_entries(entry: Entry, other: Entry) -> bool:
    """Whether two entries differ in sizes alone."""
    fields = ("name", "kind", "live", "since", "cuda_stream", "role")
    same = all(getattr(entry, field) == getattr(other, field) for field in fields)
    return same and bool(entry.bytes) == bool(other.bytes)


CALLS = ("calls", "back_calls")
EVENT_FIELDS = tuple(n for n in BlockEvents.__struct_fields__ if n not in ("sizes", *CALLS))


def _scripts(
    pairs: Iterable[tuple[object, object]], *, weights: bool
) -> dict[int, BlockEvents] | None:
    """The second of each pair by the identity of the first, where they differ in sizes alone.

    `weights`: those of weights decide the order.
    """
    found: dict[int, BlockEvents] = {}
    for one, other in pairs:
        if one is None and other is None:
            continue
        if not (isinstance(one, BlockEvents) and isinstance(other, BlockEvents)):
            return None
        known = found.get(id(one))
        if known is None and _alike_scripts(one, other, weights=weights):
            found[id(one)] = other
        elif known is not other and (known is None or known.sizes != other.sizes):
            return None
    return found


def _alike_scripts(one: BlockEvents, other: BlockEvents, *, weights: bool) -> bool:
    """Whether two scripts differ in the bytes of tensors alone, none of which has none."""
    same = all(getattr(one, field) == getattr(other, field) for field in EVENT_FIELDS)
    for calls, others in ((getattr(one, name), getattr(other, name)) for name in CALLS):
        places = [[call[:2] for call in each] for each in (calls, others)]
        same = same and (calls == others if weights else places[0] == places[1])
    return same and [*map(bool, one.sizes)] == [*map(bool, other.sizes)]
