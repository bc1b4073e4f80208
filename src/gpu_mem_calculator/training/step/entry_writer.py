"""Writes a ledger's entries as allocations and frees of tensors.

The tensors of a ledger's entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter

from ...ledger.ledger import (
    BEFORE_INPUT,
    EMBEDDED,
    FIRST_INPUT,
    GRAD,
    HEAD_GRADIENT,
    OPTIM,
    REFERENCE,
    RETURNED,
    WITH_INPUT,
    Entry,
    Ledger,
)
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.replay.stream import AllocationStream
from ...run.phases import FORWARD, OPTIMIZER, STARTUP
from .block_events import BlockRun
from .cycles import KeptNumbers, Numbers
from .refill import (
    Origin,
    Repeated,
    SizedAs,
    SizedByBlock,
    SizedByEntry,
    SizedByWriter,
    gpu_entries,
    tensor_bytes,
)
from .stream_phases import Phase


def head_gradient(entries: Sequence[Entry]) -> int | None:
    """The index of the entry of the head's gradient that waits for the embedding's, if any."""
    found = (index for index, entry in enumerate(entries) if entry.role == HEAD_GRADIENT)
    return next(found, None)


Tensors = list[int]


def rename(numbers: Numbers, tensor: int, number: int) -> None:
    """Give a block's tensor another number."""
    numbers[tensor], numbers[~tensor] = number, ~number


def renumbered(events: Sequence[int], numbers: Numbers) -> list[int]:
    """A block's events as those of the stream."""
    several = len(events) > 1  # of one, `itemgetter` returns no tuple
    return list(itemgetter(*events)(numbers)) if several else [numbers[event] for event in events]


class EntryWriter:
    """Tracks the number of every tensor that is alive, and allocates and frees those of entries.

    `first`: start-up or the first step is being written. `sizes`, `events`: those of the stream.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.plays = {n: play for n, play in ledger.plays.items() if isinstance(play, BlockRun)}
        assert len(self.plays) == len(ledger.plays)
        self.stream = AllocationStream()
        self.sizes, self.events = self.stream.sizes, self.stream.events
        self.scaled, self.own = ledger.scaled, ledger.own
        self.first = False
        self.entries = gpu_entries(ledger)
        self.alive: dict[str, dict[int, int]] = {i.name: {} for i in ledger.instants if i.present}
        self.first_step_names = {i.usual: i.name for i in ledger.instants if i.step and i.present}
        for index, entry in enumerate(self.entries):
            for name, copies in entry.live.items() if int(entry.bytes) else ():
                if copies and (table := self.alive.get(name)) is not None:
                    table[index] = int(copies)
        starts = [i.name for i in ledger.instants if i.phase == STARTUP and i.present]
        begun = {index for name in starts for index in self.alive[name]}
        numbered = tuple(enumerate(self.entries))
        self.with_role = defaultdict[str, list[int]](list)
        for index, entry in numbered:
            self.with_role[entry.role].append(index)
        self.new_states = {i for i, e in numbered if e.kind == OPTIM and i not in begun}
        old_grads = {i for i, e in numbered if e.kind == GRAD and ledger.old_grads}
        self.new_grads = old_grads - begun  # the first step's forward has none of them yet
        self.late = {i for i, e in numbered if e.since}
        self.head_gradient = head_gradient(self.entries)
        self.first_forward = {
            i.name for i in ledger.instants if i.phase == FORWARD and not i.micro_batch
        }
        self.updates = {i.name for i in ledger.instants if i.phase == OPTIMIZER}
        self.held: dict[int, list[Tensors]] = {}  # by entry: the tensors of each copy
        self.kept: dict[int, KeptNumbers] = {}  # by block: the numbers of its tensors
        self.grads: Tensors = []  # gradients of weights that are freed after the step
        self.waiting: dict[str, Tensors] = {}  # by instant: gradients of weights freed at it
        self.flow = self.back = -1  # output of the last block, gradient for the next; -1: none
        self.shared = -1  # the head's gradient of a table that it shares with the embedding
        self.cached: Tensors = []  # casts that autocast keeps until forward ends
        self.named: Tensors = []  # the embedding's outputs, which the model's forward names
        self.ready = -1  # the first block's input, where it exists before that block runs
        self.names = any(run.script.given for run in self.plays.values())
        self.masks: Tensors = []  # entries that are freed when the model's forward returns
        self.elsewhere: dict[int, int] = {}  # tensors of another CUDA stream, with its number
        self.origins: list[Origin] = []  # of the sizes that a run's tokens decide
        self.named_by_engine: dict[int, tuple[str, str]] = {}  # kind and name of tensors

    def make(self, size: int) -> int:
        """Allocate a tensor of `size` bytes; its number."""
        tensor = len(self.sizes)
        self.sizes.append(size)
        self.events.append(tensor)
        return tensor

    def make_of(self, block: BlockEvents, tensor: int) -> int:
        """Allocate a tensor as large as one of a block's; its number."""
        self.origins.append(SizedByBlock(len(self.sizes), block, tensor))
        return self.make(int(block.sizes[tensor]))

    def make_own(self, number: int) -> int:
        """Allocate one of the writer's own tensors; its number in the stream."""
        self.origins.append(SizedByWriter(len(self.sizes), number))
        return self.make(self.own[number])

    def make_like(self, tensor: int) -> int:
        """Allocate a tensor as large as another one; its number."""
        self.origins.append(SizedAs(len(self.sizes), tensor))
        return self.make(self.sizes[tensor])

    def make_entry(self, index: int) -> Tensors:
        """Allocate the tensors of an entry; their numbers."""
        begin = len(self.sizes)
        self.sizes.fromlist(tensor_bytes(self.entries[index], scaled=self.scaled))
        tensors = list(range(begin, len(self.sizes)))
        self.origins.append(SizedByEntry(begin, len(self.sizes), index))
        self.events.fromlist(tensors)
        return tensors

    def alive_tensors(self) -> Tensors:
        """The tensors that are alive between two steps."""
        single = (self.flow, self.back, self.ready)
        copies = [copy for copies in self.held.values() for copy in copies]
        lists = (*copies, *self.waiting.values(), self.grads, self.cached, self.named)
        return [*chain.from_iterable(lists), *(one for one in single if one >= 0)]

    def written(self) -> AllocationStream:
        """The stream of all that was written."""
        if self.elsewhere:
            queues = [0] * len(self.sizes)
            for tensor, queue in self.elsewhere.items():
                queues[tensor] = queue
            for one in self.origins:
                if isinstance(one, Repeated):
                    begin, end, times = one
                    queues[end : end + times * (end - begin)] = queues[begin:end] * times
            self.stream.streams = queues
        return self.stream

    def free(self, tensors: Iterable[int]) -> None:
        """Free tensors in this order."""
        self.events.fromlist([~tensor for tensor in tensors])

    def mark(self, phase: Phase) -> None:
        """Mark the end of a phase."""
        self.stream.marks.append((len(self.events), phase.title))

    def visited(self, name: str) -> None:
        """Note that an instant is written."""
        self.stream.visits.append((name, len(self.events)))

    def zero_grad(self) -> None:
        """Free the gradients after a step, the first parameter's, which is the newest, first."""
        self.free(reversed(self.grads))
        self.grads = []

    def known_as(self, name: str) -> str:
        """The name of an instant in the step that is written; the first step may have another."""
        return self.first_step_names.get(name, name) if self.first else name

    def _table(self, name: str) -> dict[int, int]:
        """Copies alive at an instant, by entry; what the optimizer allocates in its first step is
        not alive before it.
        """
        table = self.alive[self.known_as(name)]
        before_states = self.first and name not in self.updates
        missing = self.late | self.new_states if before_states else self.late
        if self.first and name in self.first_forward:
            missing = missing | self.new_grads
        return {i: n for i, n in table.items() if i not in missing} if missing else table

    def leave(self, name: str, *, gradients: bool) -> None:
        """Free the entries that are not alive at the next instant `name`.

        Gradients are among them only with `gradients`.
        """
        table = self._table(name)
        self.free(self.cached)
        self.cached = []
        for index in [i for i in self.held if i not in table]:
            if gradients or self.entries[index].kind != GRAD:
                self.keep(index, 0)

    def keep(self, index: int, copies: int) -> None:
        """Allocate or free copies of an entry until there are `copies`."""
        if self.names and self.entries[index].role == EMBEDDED:
            self._name_embedding(index, copies)
            return
        present = self.held.setdefault(index, [])
        if not copies and present and self.entries[index].role == FIRST_INPUT:
            ((self.ready,),) = self.held.pop(index)  # the layer takes it over
            return
        if len(present) > copies and self.entries[index].role == RETURNED:
            self.stream.empties.append(len(self.events) + len(present[0]))
        while len(present) > copies:
            self.free(reversed(present.pop()))  # as Python clears a list
        while len(present) < copies:
            entry = self.entries[index]
            begin = len(self.sizes)
            if entry.role == FIRST_INPUT:
                tensor = self.input(int(entry.bytes))
                self.origins.append(SizedByEntry(tensor, tensor + 1, index))
                present.append([tensor])
            elif entry.script is not None:
                if entry.role == REFERENCE:  # autocast has ended, and frees its casts
                    self.free(self.cached)
                    self.cached = []
                assert isinstance(entry.script, BlockEvents)
                ids = self._bind(entry.script, -1)
                self._play(ids, entry.script.forward)
                present.append([ids[tensor] for tensor in entry.script.left])
            else:
                present.append(self.make_entry(index))
            if entry.cuda_stream:
                tensors = range(begin, len(self.sizes))
                self.elsewhere.update(dict.fromkeys(tensors, entry.cuda_stream))
        if not present:
            del self.held[index]

    def _name_embedding(self, index: int, copies: int) -> None:
        """Allocate the embedding's outputs where the first layer's input is not one of them; the
        head's forward frees them.
        """
        if copies and not self.named:
            self.named = self.make_entry(index)

    def _bind(self, block: BlockEvents, entry: int) -> Numbers:
        """The numbers of a block's tensors, which are new; `entry` is its input's.

        An input that no block has made (-1) is allocated.
        """
        begin = len(self.sizes)
        self.origins.append(SizedByBlock(begin, block))
        self.sizes += block.size_array
        end = len(self.sizes)
        ids = [*range(begin, end), *range(-end, -begin)]
        if block.entry >= 0:
            entry, self.ready = entry if entry >= 0 else self.ready, -1
            entry = entry if entry >= 0 else self.input_of(block)
            rename(ids, block.entry, entry)
        for tensor, named in zip(block.given, self.named, strict=True) if block.given else ():
            rename(ids, tensor, named)
        self.named = [] if block.given else self.named
        return ids

    def input_of(self, block: BlockEvents) -> int:
        """Allocate the input of the first block; its number."""
        tensor = self.input(int(block.sizes[block.entry]))
        self.origins.append(SizedByBlock(tensor, block, block.entry))
        return tensor

    def input(self, size: int) -> int:
        """Allocate the first block's input of `size` bytes, after what it is made from; its
        number.
        """
        for index in self.with_role[EMBEDDED] if self.names and not self.named else ():
            if len(tensor_bytes(self.entries[index], scaled=self.scaled)) > 1:
                self._name_embedding(index, 1)  # learnt positions are added
        before = [self.make_entry(index) for index in self.with_role[BEFORE_INPUT]]
        for index in self.with_role[WITH_INPUT]:
            self.keep(index, 1)
        tensor = self.make(size)
        self.free(chain.from_iterable(before))
        return tensor

    def _play(self, ids: Numbers, events: Sequence[int]) -> None:
        """Write events of a block, its tensors numbered by `ids`; what the model names stays."""
        stays = self.named
        if stays:
            events = [e for e in events if e >= 0 or ids[~e] not in stays]
        self.events.fromlist(renumbered(events, ids))

    def free_masks(self) -> None:
        """Free the masks that the model's forward names."""
        for index in self.masks:
            self.keep(index, 0)
        self.masks = []

    def waits_for(self, phase: str) -> bool:
        """Whether the first matmul of a phase allocates anything."""
        return any(self.entries[index].since == phase for index in self.late)

    def first_matmul(self, phase: str) -> None:
        """Allocate what the first matmul of a phase does."""
        for index in sorted(i for i in self.late if self.entries[i].since == phase):
            self.late.remove(index)
            self.keep(index, 1)
