"""Every byte that one rank holds over a step: when it is alive, and its source."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from .formula import Formula
from .num import SINGLE, Bytes, Num, larger
from .remember import Same, remembered
from .source import Source

# What a byte is for, in the words of PyTorch's memory tracker, so that ledgers can be compared.
# Serving adds CACHE: keys, values and states of sequences.
KINDS = ("param", "grad", "optim", "act", "cache", "temp", "comm", "runtime")
PARAM, GRAD, OPTIM, ACT, CACHE, TEMP, COMM, RUNTIME = KINDS

GPU, CPU, NVME = "gpu", "cpu", "nvme"
RANK_0 = "rank 0"  # the host of rank 0 alone; CPU is that of every rank
UNIFIED = "unified"  # CUDA unified memory: on the GPU while that has free memory, else on the host


# Roles: by these, not by its name, code finds an entry that it treats specially.
EMBEDDED = "embedding's output"
FIRST_INPUT = "first layer's input, before that layer runs"
AFTER_EMBEDDING = "made after the embedding has run"
AFTER_MASKS = "made after the embedding and the masks"
SLACK = "blocks larger than their tensors"  # the name of an entry
BEFORE_INPUT = "made by the embedding before the first layer's input, and freed after it"
WITH_INPUT = "made by the operation that makes the first layer's input"
CHECKPOINTED = "checkpointed inputs"
IN_FLIGHT = "kept by other micro-batches in flight"
INPUTS_IN_FLIGHT = "checkpointed inputs of other micro-batches in flight"
PER_MICRO_BATCH = "each micro-batch in flight has one"
LAST_GRADIENT = "a unit's last gradient while it is reduced"
GATHERED = "gathered unit, which another CUDA stream reads"
RECORDED = "read by another CUDA stream when it is freed"
TIED = "gradient of a table that head and embedding share"
HEAD_GRADIENT = "the head's gradient of such a table, which waits for the embedding's"
REFERENCE = "forward of the reference model"
RETURNED = "returned to the driver when it is freed"
BUCKETS, OLD_BUCKETS = "gradient buckets", "gradient buckets of the first micro-batch"


class Script(Protocol):
    """Events that allocate and free tensors (pytorch/autograd/events.py has them)."""

    @property
    def forward(self) -> tuple[int, ...]:
        """The events: `i` allocates tensor i, `~i` frees it."""

    @property
    def backward(self) -> tuple[int, ...]:
        """The events of backward."""


class Play(Protocol):
    """A block that runs at an instant (training/step/block_events.py has them)."""

    @property
    def script(self) -> Script:
        """Its events."""


class Writer(Protocol):
    """Writes a stream (training/step/stream_writer.py has the usual one)."""

    def visit(self, name: str) -> None:
        """Write what is allocated and freed at the instant of this name."""


class Entry(Struct, frozen=True, gc=False):
    """Bytes on one rank, and when they are alive.

    - kind: what the bytes are for, one of KINDS
    - bytes: of one copy; live: copies alive at each instant, by its name
    - source: who says so
    - place: GPU, CPU, NVME or UNIFIED
    - parts: (name, bytes) of what `bytes` is the sum of, where that is known
    - tensors: returns the bytes of each tensor; None for a single tensor
    - since: a phase; in the first step the entry is allocated only when that phase has begun
    - cuda_stream: the CUDA stream that it is allocated on; 0 is torch's default
    - script: the events (pytorch/autograd/events.py) by which its tensors are allocated, where
      others are allocated and freed in between
    - formula: how `bytes` is computed, where it is written in words (ledger/formula.py)
    - role: one of the roles above, or ""
    """

    name: str
    kind: str
    bytes: Bytes
    live: Mapping[str, Num]
    source: Source
    place: str = GPU
    parts: tuple[tuple[str, Num], ...] = ()
    tensors: Callable[[], Iterable[Bytes]] | None = None
    since: str = ""
    cuda_stream: int = 0
    script: Script | None = None
    formula: Formula = ""
    role: str = ""

    def at(self, instant: str) -> Num:
        """Bytes alive at the instant of this name."""
        copies = self.live.get(instant)
        return 0 if copies is None else self.bytes * copies


# Fields of an instant: the first step; a micro-batch after the first; a layer of its group.
FIRST_STEP, MIDDLE, LATER = "first", "middle", "later"
FIRST, SECOND, LAST = "first", "second", "last"


class Instant(Struct, frozen=True, kw_only=True, gc=False):
    """A named point of a step.

    - name: unique in a ledger
    - phase: startup, forward, backward or optimizer
    - title: what reports print
    - present: 1, or 0 where the run does not have it
    - where: the point within a micro-batch or step, such as a layer's backward
    - step: FIRST_STEP, or "" for every step
    - micro_batch: "" for the first, LATER for any other; where the engine reduces gradients in the
      last one alone, MIDDLE for those between the two
    - layer: which layer of its group is running, FIRST, SECOND or LAST, where that is known
    """

    name: str
    phase: str
    title: str = ""
    present: Num = 1
    where: str = ""
    step: str = ""
    micro_batch: str = ""
    layer: str = ""

    @property
    def usual(self) -> str:
        """The name of the same instant in every step."""
        return _name("", self.micro_batch, self.where)

    def moved(self, where: str, **changes: str | Num) -> Instant:
        """Another instant of the same step and micro-batch."""
        name = _name(self.step, self.micro_batch, where)
        return replace(self, **{"name": name, "where": where, "layer": "", **changes})

    def in_first_step(self, **changes: str | Num) -> Instant:
        """The same instant in the first step alone."""
        name = _name(FIRST_STEP, self.micro_batch, self.where)
        return replace(self, name=name, step=FIRST_STEP, **changes)


def instant(
    where: str,
    phase: str,
    title: str,
    *,
    present: Num = 1,
    step: str = "",
    micro_batch: str = "",
    layer: str = "",
) -> Instant:
    """An instant, named after step, micro-batch and `where`."""
    return Instant(
        name=_name(step, micro_batch, where),
        phase=phase,
        title=title,
        present=present,
        where=where,
        step=step,
        micro_batch=micro_batch,
        layer=layer,
    )


def _name(*words: str) -> str:
    return ".".join(word for word in words if word)


class Ledger(Struct, frozen=True, dict=True):
    """All entries over all instants of one rank.

    - plays: in an unrolled ledger, the events of the block that runs at each instant, by the
      instant's name; its entries then leave out what blocks hold
    - writer: writes the stream, where the engine needs its own way
    - tight: writes the stream on a GPU with too little memory for the engine's usual way
    - old_grads: gradients are freed after the first forward of the next step, not after the step
    - scaled: a published parameter count overrides the architecture's, and has scaled the entries
    - groups: entries that other ledgers have as well, whose sums are remembered
    - own: bytes of tensors that the writer makes beside entries and blocks
    - schedule: what decides the order of the stream besides: where it is equal, ledgers that are
      alike in all but sizes have the same stream with other sizes. None: it is not known
    """

    instants: tuple[Instant, ...]
    entries: tuple[Entry, ...]
    plays: Mapping[str, Play] = {}
    writer: Callable[[Ledger], Writer] | None = None
    tight: Callable[[Ledger], Writer] | None = None
    scaled: bool = False
    old_grads: bool = False
    groups: tuple[tuple[Entry, ...], ...] = ()
    own: tuple[int, ...] = ()
    schedule: Hashable = None

    def at(self, instant: Instant, place: str = GPU) -> Num:
        """Bytes alive at an instant in one place: GPU, CPU, NVME or UNIFIED."""
        return self.heights(place)[instant.name]

    def parts(self, instant: Instant, place: str = GPU) -> dict[str, Num]:
        """Bytes of every kind at an instant."""
        kinds: dict[str, Num] = dict.fromkeys(KINDS, 0)
        for kind, row in self._tables.get(place, {}).items():
            kinds[kind] = row[instant.name] * instant.present
        return kinds

    def heights(self, place: str = GPU) -> dict[str, Num]:
        """Bytes alive at each instant in one place, by the instant's name."""
        return self._gpu_heights if place == GPU else self._sums(place)

    def peak(self, place: str = GPU, phases: Iterable[str] | None = None) -> Num:
        """Bytes of the highest instant, of all phases or of those named; 0 for a place unused."""
        best: Num = 0
        if all(entry.place != place for entry in self.entries):
            return best
        heights = self.heights(place)
        for instant in self.instants:
            if phases is None or instant.phase in phases:
                best = larger(best, heights[instant.name])
        return best

    def peak_instant(self, place: str = GPU, phases: Iterable[str] | None = None) -> Instant:
        """The first instant at which the peak is reached (one run, no arrays)."""
        heights = self.heights(place)
        wanted = [i for i in self.instants if phases is None or i.phase in phases]
        return max(wanted, key=lambda i: int(heights[i.name]))

    @cached_property
    def _gpu_heights(self) -> dict[str, Num]:
        return self._sums(GPU)

    @cached_property
    def _tables(self) -> dict[str, dict[str, dict[str, Num]]]:
        """Bytes by place, then by kind, then by instant, for the places and kinds of entries."""
        zeros = {instant.name: 0 for instant in self.instants}
        tables: dict[str, dict[str, dict[str, Num]]] = {}
        for entry in self.entries:
            table = tables.setdefault(entry.place, {})
            if entry.kind not in table:
                table[entry.kind] = dict(zeros)
            size, row = entry.bytes, table[entry.kind]
            for name, copies in entry.live.items():
                row[name] = row[name] + size * copies
        return tables

    def _sums(self, place: str) -> dict[str, Num]:
        if not all(isinstance(entry.bytes, SINGLE) for entry in self.entries):
            return self._array_sums(place)
        rows = list(self._tables.get(place, {}).values())
        return {i.name: sum([row[i.name] for row in rows]) * i.present for i in self.instants}

    def _array_sums(self, place: str) -> dict[str, Num]:
        """The same for arrays of runs; of a group that is here whole, the sums are remembered."""
        rest = {id(entry): entry for entry in self.entries}
        rows: list[dict[str, Num]] = []
        for group in self.groups:
            if all(id(entry) in rest for entry in group):
                rows.append(_remembered_sums(Same(group), place))
                for entry in group:
                    del rest[id(entry)]
        rows.append(group_sums(rest.values(), place))
        names = ((i, [row[i.name] for row in rows if i.name in row]) for i in self.instants)
        return {i.name: _small_first(terms) * i.present for i, terms in names}


def group_sums(entries: Iterable[Entry], place: str) -> dict[str, Num]:
    """Bytes of arrays of runs in one place, by the names of the instants at which there are any:
    small arrays are summed first, and what is alive alike at several is multiplied once.
    """
    terms: dict[str, list[Num]] = {}
    for entry in entries:
        if entry.place == place:
            products: dict[int, Num] = {}
            for name, copies in entry.live.items():
                key = copies if isinstance(copies, int) else id(copies)
                if key not in products:
                    products[key] = entry.bytes * copies if key != 1 else entry.bytes
                terms.setdefault(name, []).append(products[key])
    return {name: _small_first(several) for name, several in terms.items()}


@remembered(12, always=True)
def _remembered_sums(entries: Same[tuple[Entry, ...]], place: str) -> dict[str, Num]:
    return group_sums(entries.value, place)


def _small_first(terms: list[Num]) -> Num:
    """The sum of numbers and arrays, in the order of their sizes."""
    return sum(sorted(terms, key=lambda term: getattr(term, "size", 1)))
