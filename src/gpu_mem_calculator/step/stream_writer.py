"""Writes a ledger's instants and scripts down as tensors that are made and freed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from ..autograd.events import BlockEvents
from ..ledger.ledger import GPU, GRAD, OPTIM, Entry, Ledger
from ..replay.stream import AllocationStream
from ..run.phases import BACKWARD, OPTIMIZER, STARTUP
from .block_events import EMBEDDING, BlockRun

Tensors = list[int]


class Phase(NamedTuple):
    """A part of the stream up to a mark: its title and the names of its instants.

    `kind` is the phase of its instants, "" where it has several; `micro_batch` counts from 0.
    """

    title: str
    names: list[str]
    kind: str = ""
    micro_batch: int = 0


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


class StreamWriter:
    """Writes the stream, and knows which tensor of the ledger has which number."""

    def __init__(self, ledger: Ledger) -> None:
        self.plays: dict[str, BlockRun] = dict(ledger.plays)
        self.stream = AllocationStream(sizes=[], events=[])
        self.scaled = ledger.scaled
        self.first = False
        self.entries = [e for e in ledger.entries if e.place == GPU]
        self.tables: dict[str, dict[int, int]] = {i.name: {} for i in ledger.instants if i.present}
        self.special = {i.usual: i.name for i in ledger.instants if i.step and i.present}
        for index, entry in enumerate(self.entries):
            for name, copies in entry.live.items():
                if name in self.tables and copies and int(entry.bytes):
                    self.tables[name][index] = int(copies)
        starts = [i.name for i in ledger.instants if i.phase == STARTUP and i.present]
        begun = {index for name in starts for index in self.tables[name]}
        self.lazy = {index for index, entry in enumerate(self.entries)
                     if entry.kind == OPTIM and index not in begun}  # fmt: skip
        self.late = {index for index, entry in enumerate(self.entries) if entry.since == BACKWARD}
        self.updates = {i.name for i in ledger.instants if i.phase == OPTIMIZER}
        self.held: dict[int, list[Tensors]] = {}  # for each entry, the tensors of each copy
        self.kept: dict[int, Tensors] = {}  # for each block, the tensors of its script
        self.grads: Tensors = []  # of weights, until the step is over
        self.waiting: dict[str, Tensors] = {}  # of weights, until an instant comes
        self.flow = self.back = -1  # the tensor between two blocks, forward and backward
        self.shared = -1  # the head's gradient of a table that it shares with the embedding
        self.elsewhere: dict[int, int] = {}  # tensors that are made on another stream

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """The phases as they are run: micro-batch after micro-batch."""
        return phases

    def begin(self, phase: Phase) -> None:
        """A phase begins."""

    def make(self, size: int) -> int:
        """A new tensor."""
        self.stream.sizes.append(size)
        made = len(self.stream.sizes) - 1
        self.stream.events.append(made)
        return made

    def free(self, tensors: Iterable[int]) -> None:
        """Tensors go, in this order."""
        self.stream.events.extend(~tensor for tensor in tensors)

    def mark(self, phase: Phase) -> None:
        """A phase ends."""
        self.stream.marks.append((len(self.stream.events), phase.title))

    def zero_grad(self) -> None:
        """The step is over; the first parameter's gradient, which came last, goes first."""
        self.free(reversed(self.grads))
        self.grads = []

    def known_as(self, name: str) -> str:
        """The name of an instant in this step: the first may have one of its own."""
        return self.special.get(name, name) if self.first else name

    def _table(self, name: str) -> dict[int, int]:
        """The entries of an instant; what the optimizer makes is not there before its step."""
        table = self.tables[self.known_as(name)]
        missing = self.late if name in self.updates or not self.first else self.late | self.lazy
        return {i: n for i, n in table.items() if i not in missing} if missing else table

    def leave(self, name: str, *, gradients: bool) -> None:
        """Let go of what the next instant has not; of gradients only where that is asked for."""
        table = self._table(name)
        for index in [i for i in self.held if i not in table]:
            if gradients or self.entries[index].kind != GRAD:
                self.keep(index, 0)

    def visit(self, name: str) -> None:
        """Go on to an instant."""
        table, play = self._table(name), self.plays.get(name)
        still = play is not None and not play.forward
        if self.back >= 0 and not (still or self.kept or self.waiting):
            self.free((self.back,))  # the embedding's entry has it
            self.back = -1
        self.free(self.waiting.pop(name, ()))
        for index in [i for i in self.held if i not in table]:
            self.keep(index, 0)
        for index, copies in table.items():
            self.keep(index, copies)
        if play is not None and play.block == EMBEDDING:
            self.embedding(play)
        elif play is not None:
            (self.forward if play.forward else self.backward)(play)

    def keep(self, index: int, copies: int) -> None:
        """Make or free copies of an entry until there are so many."""
        held = self.held.setdefault(index, [])
        while len(held) > copies:
            self.free(reversed(held.pop()))  # as Python clears a list
        while len(held) < copies:
            entry = self.entries[index]
            begin = len(self.stream.sizes)
            if entry.script is not None:
                ids = self._bind(entry.script, -1)
                self._play(ids, entry.script.forward)
                held.append([ids[tensor] for tensor in entry.script.left])
            else:
                sizes = tensor_bytes(entry, scaled=self.scaled)
                held.append([self.make(size) for size in sizes])
            if entry.cuda_stream:
                made = range(begin, len(self.stream.sizes))
                self.elsewhere.update(dict.fromkeys(made, entry.cuda_stream))
        if not held:
            del self.held[index]

    def _bind(self, script: BlockEvents, entry: int) -> Tensors:
        """Numbers for the tensors of a script."""
        begin = len(self.stream.sizes)
        self.stream.sizes.extend(map(int, script.sizes))
        ids = list(range(begin, len(self.stream.sizes)))
        if script.entry >= 0:
            ids[script.entry] = entry if entry >= 0 else self.input(int(script.sizes[script.entry]))
        return ids

    def input(self, size: int) -> int:
        """What comes into the first block."""
        return self.make(size)

    def _play(self, ids: Tensors, events: Iterable[int]) -> None:
        self.stream.events.extend([ids[e] if e >= 0 else ~ids[~e] for e in events])

    def forward(self, play: BlockRun) -> None:
        """A block runs forward: its output is the next one's input. Start-up's has none."""
        script = play.once or play.script
        ids = self._bind(script, self.flow)
        self._play(ids, script.forward)
        if script.exit >= 0:
            self.flow = ids[script.exit]
            self.kept[play.block] = ids

    def backward(self, play: BlockRun) -> None:
        """A block runs backward; a checkpointed one runs forward again before."""
        script, ids = play.script, self.kept.pop(play.block)
        if self.flow >= 0:  # the loss itself
            self.free((self.flow,))
            self.flow = -1
        if self.back < 0:
            self.back = self.make(int(script.sizes[script.exit_grad]))
        output: Tensors = []
        if play.once is not None:
            held = ids[play.once.entry]
            ids = self._bind(script, held)
            self._play(ids, script.forward)
            output = [ids[script.exit]]
            if not play.reentrant:
                self.free(output)
                output = []
        ids[script.exit_grad] = self.back
        events = script.later() if play.goes else script.backward
        self._backward(play, ids, events)
        self.free(ids[tensor] for tensor in script.left)
        if play.once is not None:
            self.free((*output, ids[script.entry]))
        self.back = ids[script.entry_grad] if script.entry_grad >= 0 else -1
        if not play.goes:
            self._gradients(play).extend(ids[t] for _, t in script.drops)
        if script.shared >= 0:
            self.shared = ids[script.shared]
            if play.goes and not play.waits:
                self.free((self.shared,))

    def _gradients(self, play: BlockRun) -> Tensors:
        """Where a block's weights have their gradients."""
        return self.waiting.setdefault(play.until, []) if play.until else self.grads

    def embedding(self, play: BlockRun) -> None:
        """Backward of the embedding; the gradient of a table that the head shares is there."""
        script, grads = play.script, self._gradients(play)
        ids = self._bind(script, self.shared)
        if script.entry >= 0 and not play.goes:
            grads.remove(self.shared)
        ids[script.exit_grad] = self.back
        self._play(ids, script.backward)
        self.back = -1
        made = [ids[tensor] for _, tensor in script.drops]
        if play.goes:
            self.free(made)
        else:
            grads += made

    def _backward(self, play: BlockRun, ids: Tensors, events: tuple[int, ...]) -> None:
        """Its events, with what the first matmul makes between them."""
        done = 0
        if self.late and play.script.matmul >= 0:
            done = play.script.matmul
            self._play(ids, events[:done])
            for index in self.late:
                self.keep(index, 1)
            self.late = set()
        self._play(ids, events[done:])
