"""Every byte one rank holds over a step, when it is alive, and who says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .num import Num, larger
from .source import Source

# What a byte is for. PyTorch's memory tracker uses the same words, so ledgers line up.
# CACHE is what serving adds to them: keys, values and states of sequences.
PARAM, GRAD, OPTIM, ACT, CACHE, TEMP, COMM, RUNTIME = (
    "param", "grad", "optim", "act", "cache", "temp", "comm", "runtime",
)  # fmt: skip
KINDS = (PARAM, GRAD, OPTIM, ACT, CACHE, TEMP, COMM, RUNTIME)

NOTHING = dict.fromkeys(KINDS, 0)

GPU, CPU, NVME = "gpu", "cpu", "nvme"
UNIFIED = "unified"  # CUDA unified memory: on the GPU while that has room, else on the host


# What an entry is to code that treats it apart from others, whatever it is called.
EMBEDDED = "embedding's output"
CHECKPOINTED = "checkpointed inputs"
IN_FLIGHT = "kept by other micro-batches in flight"
INPUTS_IN_FLIGHT = "checkpointed inputs of other micro-batches in flight"
PER_MICRO_BATCH = "each micro-batch in flight has one"
TIED = "gradient of a table that head and embedding share"
BUCKETS, OLD_BUCKETS = "gradient buckets", "gradient buckets of the first micro-batch"


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """Bytes on one rank, how many copies are alive at each instant, and the source."""

    name: str
    kind: str
    bytes: Num
    live: Mapping[str, Num]
    source: Source
    place: str = GPU
    parts: tuple[tuple[str, Num], ...] = ()  # what `bytes` is made of, where that is known
    tensors: Callable[[], Iterable[Num]] | None = None  # bytes of each tensor; None: it is one
    since: str = ""  # a phase: what the first step makes only when that has begun
    cuda_stream: int = 0  # the stream that it is made on; 0 is torch's own
    script: Any = None  # how its tensors are made, where others come and go meanwhile
    formula: str = ""  # how `bytes` comes about, where it is not written with letters
    role: str = ""  # one of those above, where other code looks for the entry

    def at(self, instant: str) -> Num:
        """Bytes alive at an instant."""
        copies = self.live.get(instant)
        return 0 if copies is None else self.bytes * copies


# Of an instant: the first step alone; a micro-batch after the first; the layer of a stretch.
FIRST_STEP, LATER = "first", "later"
FIRST, SECOND, LAST = "first", "second", "last"


class Instant(Struct, frozen=True, kw_only=True, gc=False):
    """A named moment of a step; `present` is 0 where a run does not have it.

    `where`: the moment itself, in any step and micro-batch. `step`: FIRST_STEP, or "" for every
    step. `micro_batch`: LATER, or "" for the first. `layer`: which of a stretch of equal layers is
    at work, FIRST, SECOND or LAST, where that is known.
    """

    name: str
    phase: str  # startup | forward | backward | optimizer
    title: str = ""
    present: Num = 1
    where: str = ""
    step: str = ""
    micro_batch: str = ""
    layer: str = ""

    @property
    def usual(self) -> str:
        """The name of the same moment in every step."""
        return _name("", self.micro_batch, self.where)

    def moved(self, where: str, **changes: Any) -> Instant:
        """Another moment of the same step and micro-batch."""
        name = _name(self.step, self.micro_batch, where)
        return replace(self, **{"name": name, "where": where, "layer": "", **changes})

    def in_first_step(self, **changes: Any) -> Instant:
        """The same moment in the first step alone."""
        name = _name(FIRST_STEP, self.micro_batch, self.where)
        return replace(self, name=name, step=FIRST_STEP, **changes)


def instant(
    where: str, phase: str, title: str, *, present: Num = 1, step: str = "",
    micro_batch: str = "", layer: str = "",
) -> Instant:  # fmt: skip
    """An instant whose name says all of that."""
    return Instant(name=_name(step, micro_batch, where), phase=phase, title=title, present=present,
                   where=where, step=step, micro_batch=micro_batch, layer=layer)  # fmt: skip


def _name(*words: str) -> str:
    return ".".join(word for word in words if word)


class Ledger(Struct, frozen=True, dict=True):
    """All entries over all instants of one rank.

    An unrolled ledger leaves out what blocks of layers hold; `plays` has it as scripts, one for
    each instant at which a block works. `writer` writes its stream, where the engine has one of its
    own, and `tight` that of a GPU on which the engine finds too little memory for its usual way.
    `scaled`: a given parameter count overrides the architecture's, and has scaled the entries.
    """

    instants: tuple[Instant, ...]
    entries: tuple[Entry, ...]
    plays: Mapping[str, Any] = {}
    writer: Callable[[Any], Any] | None = None
    tight: Callable[[Any], Any] | None = None
    scaled: bool = False

    def at(self, instant: Instant, place: str = GPU) -> Num:
        """Bytes alive at an instant in one place."""
        return self.heights(place)[instant.name]

    def parts(self, instant: Instant, place: str = GPU) -> dict[str, Num]:
        """Bytes by kind at an instant."""
        found, name, present = dict(NOTHING), instant.name, instant.present
        for kind, row in self._tables.get(place, {}).items():
            found[kind] = row[name] * present
        return found

    def heights(self, place: str = GPU) -> dict[str, Num]:
        """Bytes alive at every instant in one place."""
        return self._gpu_heights if place == GPU else self._summed(place)

    def peak(self, place: str = GPU, phases: Iterable[str] | None = None) -> Num:
        """The highest instant's bytes."""
        best: Num = 0
        if place not in self._tables:
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
        return self._summed(GPU)

    @cached_property
    def _tables(self) -> dict[str, dict[str, dict[str, Num]]]:
        """Bytes by place, then by kind, then by instant; places and kinds that entries have."""
        nothing = {instant.name: 0 for instant in self.instants}
        tables: dict[str, dict[str, dict[str, Num]]] = {}
        for entry in self.entries:
            table = tables.setdefault(entry.place, {})
            if entry.kind not in table:
                table[entry.kind] = dict(nothing)
            size, row = entry.bytes, table[entry.kind]
            for name, copies in entry.live.items():
                row[name] = row[name] + size * copies
        return tables

    def _summed(self, place: str) -> dict[str, Num]:
        rows = list(self._tables.get(place, {}).values())
        return {i.name: sum([row[i.name] for row in rows]) * i.present for i in self.instants}
