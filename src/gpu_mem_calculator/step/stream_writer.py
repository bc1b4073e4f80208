"""Writes a ledger's entries and block events as allocations and frees of tensors."""

from __future__ import annotations

from collections.abc import Iterable

from ..autograd.events import BlockEvents
from ..ledger.ledger import AFTER_EMBEDDING, EMBEDDED, FIRST_INPUT, GPU, GRAD, OPTIM, Entry, Ledger
from ..replay.stream import AllocationStream
from ..run.phases import BACKWARD, OPTIMIZER, STARTUP
from .block_events import EMBEDDING, BlockRun
from .entry_tensors import head_gradient, tensor_bytes
from .stream_phases import Phase

Tensors = list[int]


class StreamWriter:
    """Writes the stream, and tracks the number of every tensor that is alive.

    `first`: start-up or the first step is being written. Engines that allocate in another way
    override its methods.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.plays = {n: play for n, play in ledger.plays.items() if isinstance(play, BlockRun)}
        assert len(self.plays) == len(ledger.plays)
        self.stream = AllocationStream(sizes=[], events=[])
        self.scaled = ledger.scaled
        self.first = False
        self.entries = [e for e in ledger.entries if e.place == GPU]
        self.alive: dict[str, dict[int, int]] = {i.name: {} for i in ledger.instants if i.present}
        self.first_step_names = {i.usual: i.name for i in ledger.instants if i.step and i.present}
        for index, entry in enumerate(self.entries):
            for name, copies in entry.live.items():
                if name in self.alive and copies and int(entry.bytes):
                    self.alive[name][index] = int(copies)
        starts = [i.name for i in ledger.instants if i.phase == STARTUP and i.present]
        begun = {index for name in starts for index in self.alive[name]}
        numbered = tuple(enumerate(self.entries))
        self.new_states = {i for i, e in numbered if e.kind == OPTIM and i not in begun}
        self.late = {i for i, e in numbered if e.since == BACKWARD}
        self.head_gradient = head_gradient(self.entries)
        self.updates = {i.name for i in ledger.instants if i.phase == OPTIMIZER}
        self.held: dict[int, list[Tensors]] = {}  # by entry: the tensors of each copy
        self.kept: dict[int, Tensors] = {}  # by block: the tensors of its events
        self.grads: Tensors = []  # gradients of weights that are freed after the step
        self.waiting: dict[str, Tensors] = {}  # by instant: gradients of weights freed at it
        self.flow = self.back = -1  # output of the last block, gradient for the next; -1: none
        self.shared = -1  # the head's gradient of a table that it shares with the embedding
        self.cached: Tensors = []  # casts that autocast keeps until forward ends
        self.named: Tensors = []  # the embedding's outputs, which the model's forward names
        self.ready = -1  # the first block's input, where it exists before that block runs
        self.names = any(run.script.given for run in self.plays.values())
        self.elsewhere: dict[int, int] = {}  # tensors of another CUDA stream, with its number

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """The phases in the order in which the engine runs them."""
        return phases

    def begin(self, phase: Phase) -> None:
        """A hook: a phase begins. Nothing is allocated here by default."""

    def make(self, size: int) -> int:
        """Allocate a tensor of `size` bytes; its number."""
        self.stream.sizes.append(size)
        tensor = len(self.stream.sizes) - 1
        self.stream.events.append(tensor)
        return tensor

    def free(self, tensors: Iterable[int]) -> None:
        """Free tensors in this order."""
        self.stream.events.extend(~tensor for tensor in tensors)

    def mark(self, phase: Phase) -> None:
        """Mark the end of a phase."""
        self.stream.marks.append((len(self.stream.events), phase.title))

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

    def visit(self, name: str) -> None:
        """Go to an instant: free and allocate entries, then write the events of its block."""
        table, block_run = self.alive_at(name), self.plays.get(name)
        in_backward = block_run is not None and not block_run.forward
        if self.back >= 0 and not (in_backward or self.kept or self.waiting):
            self.free((self.back,))  # the embedding's entry counts it
            self.back = -1
        self.free(self.waiting.pop(name, ()))
        for index in [i for i in self.held if i not in table]:
            self.keep(index, 0)
        first = block_run is not None and block_run.forward and self.flow < 0
        later = [i for i in table if first and self.entries[i].role == AFTER_EMBEDDING]
        for index, copies in table.items():
            if index not in later:
                self.keep(index, copies)
        if block_run is not None and later and self.ready < 0:
            block = block_run.once or block_run.script
            self.ready = self.input(int(block.sizes[block.entry])) if block.entry >= 0 else -1
        for index in later:
            self.keep(index, table[index])
        self.work(name, block_run)

    def alive_at(self, name: str) -> dict[int, int]:
        """The copies of each entry while an instant is visited; an engine may leave some out."""
        return self._table(name)

    def work(self, name: str, block_run: BlockRun | None) -> None:
        """Write the events of an instant's block; an engine may do its own work at one."""
        if block_run is not None and block_run.block == EMBEDDING:
            self.embedding(block_run)
        elif block_run is not None:
            (self.forward if block_run.forward else self.backward)(block_run)

    def keep(self, index: int, copies: int) -> None:
        """Allocate or free copies of an entry until there are `copies`."""
        if self.names and self.entries[index].role == EMBEDDED:
            self._name_embedding(self.entries[index], copies)
            return
        present = self.held.setdefault(index, [])
        if not copies and present and self.entries[index].role == FIRST_INPUT:
            ((self.ready,),) = self.held.pop(index)  # the layer takes it over
            return
        while len(present) > copies:
            self.free(reversed(present.pop()))  # as Python clears a list
        while len(present) < copies:
            entry = self.entries[index]
            begin = len(self.stream.sizes)
            if entry.script is not None:
                assert isinstance(entry.script, BlockEvents)
                ids = self._bind(entry.script, -1)
                self._play(ids, entry.script.forward)
                present.append([ids[tensor] for tensor in entry.script.left])
            else:
                sizes = tensor_bytes(entry, scaled=self.scaled)
                present.append([self.make(size) for size in sizes])
            if entry.cuda_stream:
                tensors = range(begin, len(self.stream.sizes))
                self.elsewhere.update(dict.fromkeys(tensors, entry.cuda_stream))
        if not present:
            del self.held[index]

    def _name_embedding(self, entry: Entry, copies: int) -> None:
        """Allocate the embedding's outputs where the first layer's input is not one of them; the
        head's forward frees them.
        """
        if copies and not self.named:
            self.named = [self.make(size) for size in tensor_bytes(entry, scaled=self.scaled)]

    def _bind(self, block: BlockEvents, entry: int) -> Tensors:
        """The number in the stream of each of a block's tensors; `entry` is its input's.

        An input that no block has made (-1) is allocated.
        """
        begin = len(self.stream.sizes)
        self.stream.sizes.extend(map(int, block.sizes))
        ids = list(range(begin, len(self.stream.sizes)))
        if block.entry >= 0:
            entry, self.ready = entry if entry >= 0 else self.ready, -1
            ids[block.entry] = entry if entry >= 0 else self.input(int(block.sizes[block.entry]))
        for tensor, named in zip(block.given, self.named, strict=True) if block.given else ():
            ids[tensor] = named
        self.named = [] if block.given else self.named
        return ids

    def input(self, size: int) -> int:
        """Allocate the first block's input of `size` bytes; its number."""
        return self.make(size)

    def _play(self, ids: Tensors, events: Iterable[int]) -> None:
        """Write events of a block, its tensors numbered by `ids`; what the model names stays."""
        stays = self.named
        self.stream.events.extend(
            [ids[e] if e >= 0 else ~ids[~e] for e in events if e >= 0 or ids[~e] not in stays]
        )

    def forward(self, block_run: BlockRun) -> None:
        """A block runs forward; its output is the next one's input. Start-up's has no output."""
        block = block_run.once or block_run.script
        first = self.flow < 0
        ids = self._bind(block, self.flow)
        if first and self.names and not self.named:
            self.named = [ids[block.entry]]
        self._forward(block_run, ids, block)
        self.cached += [ids[tensor] for tensor in block.left] if block_run.once else []
        if block.exit >= 0:
            self.flow = ids[block.exit]
            self.kept[block_run.block] = ids

    def backward(self, block_run: BlockRun) -> None:
        """A block runs backward; a checkpointed one is recomputed first."""
        block, ids = block_run.script, self.kept.pop(block_run.block)
        if self.flow >= 0:  # the loss itself
            self.free((self.flow,))
            self.flow = -1
        if self.back < 0:
            self.back = self.make(int(block.sizes[block.exit_grad]))
        self.before_backward(block_run, ids)
        output: Tensors = []
        events = block.later() if block_run.goes else block.backward
        begin = 0
        if block_run.once is not None:
            ids, begin = self._bind(block, ids[block_run.once.entry]), block.recompute_at
            ids[block.exit_grad] = self.back
            self._play(ids, events[:begin])
            self._forward(block_run, ids, block)
            output = [ids[block.exit]] if int(block.sizes[block.exit]) else []
            if not block_run.reentrant:
                self.free(output)
                output = []
        ids[block.exit_grad] = self.back
        self._backward(block_run, ids, events, begin)
        self.free(ids[tensor] for tensor in block.left)
        if block_run.once is not None:
            held = () if ~block.entry in block.backward else (ids[block.entry],)
            self.free((*output, *held))
        self.back = ids[block.entry_grad] if block.entry_grad >= 0 else -1
        self.keep_gradients(block_run, ids)

    def before_backward(self, block_run: BlockRun, ids: Tensors) -> None:
        """Called before a block runs backward or is recomputed; an engine may prepare it."""

    def keep_gradients(self, block_run: BlockRun, ids: Tensors) -> None:
        """Weights' gradients stay where the engine keeps them, or are freed if they were added."""
        block = block_run.script
        if not block_run.goes:
            self._gradients(block_run).extend(ids[t] for _, t in block.drops)
        if block.shared >= 0:
            self.shared = ids[block.shared]
            if block_run.goes and not block_run.waits:
                if self.head_gradient is None:
                    self.free((self.shared,))
                else:  # its entry takes it over
                    self.held[self.head_gradient] = [[self.shared]]

    def _gradients(self, block_run: BlockRun) -> Tensors:
        """The list of gradients that are freed when those of the block's weights are."""
        return self.waiting.setdefault(block_run.until, []) if block_run.until else self.grads

    def embedding(self, block_run: BlockRun) -> None:
        """The embedding runs backward; the gradient of a table it shares with the head exists."""
        block, grads = block_run.script, self._gradients(block_run)
        ids = self._bind(block, self.shared)
        if block.entry >= 0 and not block_run.goes:
            grads.remove(self.shared)
        ids[block.exit_grad] = self.back
        self._play(ids, block.backward)
        self.back = -1
        weights = [ids[tensor] for _, tensor in block.drops]
        if block_run.goes:
            self.free(weights)
        else:
            grads += weights

    def _forward(self, block_run: BlockRun, ids: Tensors, block: BlockEvents) -> None:
        """Write a block's forward events; an engine may work between them."""
        self._play(ids, block.forward)

    def _backward(
        self, block_run: BlockRun, ids: Tensors, events: tuple[int, ...], begin: int
    ) -> None:
        """Write a block's backward events from `begin` on, and between them what its first matmul
        allocates.
        """
        if self.late and block_run.script.matmul >= 0:
            matmul = block_run.script.matmul
            self._play(ids, events[begin:matmul])
            for index in self.late:
                self.keep(index, 1)
            self.late, begin = set(), matmul
        self._play(ids, events[begin:])
