"""Writes a ledger's entries and block events as allocations and frees of tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Sized
from functools import cached_property
from itertools import chain, islice

from ...ledger.ledger import AFTER_EMBEDDING, AFTER_MASKS, EMBEDDED, FIRST_INPUT, WITH_INPUT
from ...pytorch.autograd.events import BlockEvents
from ...run.phases import BACKWARD, FORWARD
from .block_events import EMBEDDING, HEAD, BlockRun
from .cycles import (
    Cycle,
    KeptNumbers,
    Numbers,
    PhaseInstants,
    State,
    continued,
    follows,
    lines,
    steps,
)
from .entry_writer import EntryWriter, Tensors, rename
from .refill import Equal, Repeated
from .stream_phases import Phase

OWN = 4  # lengths of a state that every writer has
MADE_LATER = (WITH_INPUT, AFTER_EMBEDDING, AFTER_MASKS)  # roles in the order of their entries


class StreamWriter(EntryWriter):
    """Writes the stream: at each instant its entries, then the events of its block.

    Engines that allocate in another way override its methods. `refills`: it notes the origin of
    each size that a run's tokens decide. `gradients_wait`: they are freed after what follows a step
    has begun.
    """

    refills = True
    gradients_wait = False

    @cached_property
    def changes(self) -> dict[tuple[str, str], int]:
        """The changes from one instant to the next, by their names."""
        return {}

    @cached_property
    def numbered(self) -> dict[Hashable, int]:
        """The number of each change."""
        return {}

    @cached_property
    def made_later(self) -> list[int]:
        """The entries that are made when the first block runs."""
        return [index for role in MADE_LATER for index in self.with_role[role]]

    @cached_property
    def embeds(self) -> bool:
        """Whether the embedding's backward has events, which free its output's gradient."""
        return any(run.block == EMBEDDING for run in self.plays.values())

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """The phases in the order in which the engine runs them."""
        return phases

    def begin(self, phase: Phase) -> None:
        """A hook: a phase begins. Nothing is allocated here by default."""

    def visit(self, name: str) -> None:
        """Go to an instant: free and allocate entries, then write the events of its block."""
        table, block_run = self.alive_at(name), self.plays.get(name)
        in_backward = block_run is not None and not block_run.forward
        if self.back >= 0 and not (in_backward or self.kept or self.waiting or self.embeds):
            self.free((self.back,))  # the embedding's entry counts it
            self.back = -1
        self.free(self.waiting.pop(name, ()))
        gone = [i for i in self.held if i not in table]
        self.masks = []
        if block_run is not None and block_run.forward and block_run.block == HEAD:
            self.masks = [i for i in gone if self.entries[i].role == AFTER_EMBEDDING]
        for index in gone:
            if index not in self.masks:
                self.keep(index, 0)
        later = [i for i in self.made_later if i in table]
        inputs = [i for i in self.with_role[FIRST_INPUT] if i in table and i not in self.held]
        for index in (*inputs, *later) if inputs else ():
            self.keep(index, table[index])
        for index, copies in table.items():
            held = self.held.get(index, ())
            if len(held) != copies and (held or index not in later):
                self.keep(index, copies)
        if block_run is not None and block_run.forward and self.flow < 0:
            block = block_run.once or block_run.script
            if later and self.ready < 0 <= block.entry:
                self.ready = self.input_of(block)
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

    def forward(self, block_run: BlockRun) -> None:
        """A block runs forward; its output is the next one's input. Start-up's has no output."""
        block = block_run.once or block_run.script
        first = self.flow < 0
        ids = self._bind(block, self.flow)
        if block.forward_matmul < 0 <= block.exit:
            self.first_matmul(FORWARD)
        if first and self.names and not self.named:
            self.named = [ids[block.entry]]
        self._forward(block_run, ids, block)
        until_end = block.left if block_run.once else block.until_forward_ends
        self.cached += [ids[tensor] for tensor in until_end]
        if block.exit >= 0:
            self.flow = ids[block.exit]
            self.kept[block_run.block] = KeptNumbers(ids, ids, 0)

    def backward(self, block_run: BlockRun) -> None:
        """A block runs backward; a checkpointed one is recomputed first."""
        block, ids = block_run.script, self.kept.pop(block_run.block).numbers()
        if self.flow >= 0:  # the loss itself
            self.free((self.flow,))
            self.flow = -1
        if self.back < 0:
            self.back = self.make_of(block, block.exit_grad)
        self.before_backward(block_run, ids)
        output: Tensors = []
        events = block.later if block_run.goes else block.backward
        begin = 0
        if block_run.once is not None:
            ids, begin = self._bind(block, ids[block_run.once.entry]), block.recompute_at
            rename(ids, block.exit_grad, self.back)
            self._play(ids, events[:begin])
            if block_run.offloaded:
                rename(ids, block.entry, self.make_of(block, block.entry))
            self._forward(block_run, ids, block)
            output = [ids[block.exit]] if int(block.sizes[block.exit]) else []
            if not block_run.reentrant:
                self.free(output)
                output = []
        rename(ids, block.exit_grad, self.back)
        self._backward(block_run, ids, events, begin)
        self.free(ids[tensor] for tensor in block.left)
        if block_run.once is not None:
            held = () if block.frees_entry else (ids[block.entry],)
            self.free((*output, *held))
        self.back = ids[block.entry_grad] if block.entry_grad >= 0 else -1
        self.keep_gradients(block_run, ids)

    def before_backward(self, block_run: BlockRun, ids: Numbers) -> None:
        """Called before a block runs backward or is recomputed; an engine may prepare it."""

    def keep_gradients(self, block_run: BlockRun, ids: Numbers) -> None:
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
        rename(ids, block.exit_grad, self.back)
        self.play_embedding(ids, block)
        self.back = -1
        weights = [ids[tensor] for _, tensor in block.drops]
        if block_run.goes:
            self.free(weights)
        else:
            grads += reversed(weights)  # in the order in which they were made

    def play_embedding(self, ids: Numbers, block: BlockEvents) -> None:
        """Write the embedding's backward events. Its dropout or norm is first: it allocates a
        gradient, and frees the output's and what was saved.
        """
        masks = [i for i in self.held if self.entries[i].role in (WITH_INPUT, EMBEDDED)]
        first = 2 if masks else 0
        self._play(ids, block.backward[:first])
        for index in masks:
            self.keep(index, 0)
        self._play(ids, block.backward[first:])

    def _forward(self, block_run: BlockRun, ids: Numbers, block: BlockEvents) -> None:
        """Write a block's forward events; an engine may work between them. The model's forward
        returns before the head's last matmul, and frees the masks.
        """
        if self.masks:
            returns = block.calls[-1][0] if block.calls else 0
            self._play(ids, block.forward[:returns])
            self.free_masks()
            self._play(ids, block.forward[returns:])
            return
        self._play_with_matmul(ids, block.forward, 0, block.forward_matmul, FORWARD)

    def _backward(
        self, block_run: BlockRun, ids: Numbers, events: tuple[int, ...], begin: int
    ) -> None:
        """Write a block's backward events from `begin` on, and between them what its first matmul
        allocates.
        """
        self._play_with_matmul(ids, events, begin, block_run.script.matmul, BACKWARD)

    def _play_with_matmul(
        self, ids: Numbers, events: tuple[int, ...], begin: int, matmul: int, phase: str
    ) -> None:
        """Write events from `begin` on, and between them what the first matmul allocates."""
        if matmul >= 0 and self.waits_for(phase):
            self._play(ids, events[begin:matmul])
            self.first_matmul(phase)
            begin = matmul
        self._play(ids, events[begin:])

    def sign(self, phase: PhaseInstants, place: int) -> Hashable:
        """What decides, beside the state, what is written at an instant; None: it has no equal."""
        names, places = phase.names, phase.places
        name = names[place]
        run = self.plays.get(name)
        if not place or (run is not None and run.block in (HEAD, EMBEDDING)):
            return None
        more = self._change(self.known_as(names[place - 1]), self.known_as(name))
        times = (name in self.first_forward, name in self.updates)
        if run is None:
            return more, times
        frees = places[run.until] - place if run.until in places else run.until
        how = (run.forward, run.reentrant, run.offloaded, run.goes, run.waits, frees)
        return more, times, how, id(run.script), id(run.once)

    def _change(self, before: str, name: str) -> int:
        """A number for how the copies of entries differ from those of the instant before."""
        if (before, name) not in self.changes:
            old = self.alive[before]
            more = tuple([(i, copies - old.get(i, 0)) for i, copies in self.alive[name].items()])
            self.changes[before, name] = self.numbered.setdefault(more, len(self.numbered))
        return self.changes[before, name]

    def moving(self, names: Sequence[str]) -> tuple[list[int], list[int]] | None:
        """Of instants and the one that follows, the entries whose copies change, and come back to
        what they were; and those whose copies grow. None where some become fewer.
        """
        first, *rest = [self.alive[self.known_as(name)] for name in names]
        last = rest[-1]
        if any(last.get(index, 0) < copies for index, copies in first.items()):
            return None
        growing = sorted(index for index, copies in last.items() if copies > first.get(index, 0))
        every = sorted({index for table in (first, *rest) for index in table}.difference(growing))
        return [i for i in every if any(table.get(i) != first.get(i) for table in rest)], growing

    def state(self, cycle: Cycle, begin: int) -> State:
        """The state before the cycle that begins at `begin`."""
        single = (self.flow, self.back, self.shared, self.ready)
        lists = self._moving_tensors(cycle)
        places = [(name, cycle.phase.places.get(name, cycle.end)) for name in self.waiting]
        waiting = [place - begin if place < cycle.end else name for name, place in places]
        held = [(i, i in cycle.growing or len(copies)) for i, copies in self.held.items()]
        shape, numbers, written = self.more_state()
        return State(
            (
                held,
                [len(one) for one in lists],
                [one < 0 for one in single],
                (waiting, self.masks, sorted(self.late), bool(self.kept)),
                (len(self.stream.empties), len(self.stream.uses)),
                shape,
            ),
            [*single, *chain.from_iterable(lists), *numbers],
            [*map(len, self._growing(cycle)), *written],
            self._inputs(cycle.phase.names[begin : begin + cycle.length]),
        )

    def _growing(self, cycle: Cycle) -> list[Sized]:
        """What only grows in a cycle: the stream, gradients, copies of entries."""
        own = (self.events, self.sizes, self.grads, self.cached)
        return [*own, *(self.held.get(index, ()) for index in cycle.growing)]

    def _moving_tensors(self, cycle: Cycle) -> list[Tensors]:
        """The tensors that may be freed in a cycle."""
        held = [copy for index in cycle.moving for copy in self.held.get(index, ())]
        return [*held, self.named, *self.waiting.values()]

    def _inputs(self, names: Iterable[str]) -> list[KeptNumbers]:
        """What forward has kept for the blocks that run backward at some instants."""
        runs = [self.plays[name] for name in names if name in self.plays]
        return [self.kept[run.block] for run in runs if not run.forward]

    def more_state(self) -> tuple[Hashable, list[int], list[int]]:
        """Shape, numbers and lengths of an engine's own state."""
        return (), [], []

    def go_on_more(self, numbers: list[int], written: list[int], count: int) -> None:
        """Set an engine's own numbers, `count` cycles later; `written`: by how much its lengths
        grow in each.
        """

    def regular(self, cycle: Cycle, states: Sequence[State], begin: int, count: int) -> int:
        """How many of the next `count` cycles continue those between three states."""
        (_, start, *_), (_, middle, *_), (_, end, *_) = (state.written for state in states)
        if self.sizes[start:middle] != self.sizes[middle:end]:
            return 0
        before, last = (state.inputs for state in states[:2])
        for number in range(count if last else 0):
            at = begin + number * cycle.length
            inputs = self._inputs(cycle.phase.names[at : at + cycle.length])
            if not all(map(follows, before, last, inputs)):
                return number
            before, last = last, inputs
        return count

    def go_on(self, cycle: Cycle, states: Sequence[State], begin: int, count: int) -> None:
        """Write the next `count` cycles as they continue those between three states."""
        ranges = [
            (slice(a, b), slice(b, c))
            for a, b, c in zip(*(state.written for state in states), strict=True)
        ]
        (one, two), (_, made), *grown = ranges
        self._visited_again(cycle, begin, count, two.stop - two.start)
        self.events += continued(self.events[one], self.events[two], count)
        self.sizes += self.sizes[made] * count
        window = range(made.start, made.stop)
        before = range(2 * made.start - made.stop, made.start)
        self.origins += (Equal(before, window), Repeated(made.start, made.stop, count))
        for tensors, (one, two) in zip((self.grads, self.cached), grown, strict=False):
            tensors += chain.from_iterable(lines(tensors[one], tensors[two], count))
        for index, (one, two) in zip(cycle.growing, grown[2:], strict=False):
            copies = self.held[index]
            pairs = zip(copies[one], copies[two], strict=True)
            rows = [lines(before, last, count) for before, last in pairs]
            copies += [copy for row in zip(*rows, strict=True) for copy in row]
        for place in range(begin - 2 * cycle.length, begin - cycle.length):
            names = cycle.phase.names[place : cycle.end : cycle.length]
            self._keep_lines(names[: count + 2])
        own = OWN + len(cycle.growing)
        (numbers,) = lines(states[1].numbers, states[2].numbers, count)[-1:]
        more = self._set_numbers(cycle, numbers, count)
        self.go_on_more(more, steps(states[1].written[own:], states[2].written[own:]), count)

    def _visited_again(self, cycle: Cycle, begin: int, count: int, events: int) -> None:
        """Note the instants of the next `count` cycles, each of so many events."""
        visits = self.stream.visits
        last = [end for _, end in visits[-cycle.length :]]
        ends = (end + events * number for number in range(1, count + 1) for end in last)
        visits += zip(cycle.phase.names[begin : cycle.end], ends, strict=False)

    def _keep_lines(self, names: list[str]) -> None:
        """Of a block that runs in each cycle, keep what forward keeps, or forget it."""
        runs = [self.plays[name] for name in names if name in self.plays]
        blocks = [run.block for run in runs]
        if runs and not runs[0].forward:
            for block in blocks[2:]:
                del self.kept[block]
        elif runs and blocks[0] in self.kept:
            first, second = (self.kept[block].first for block in blocks[:2])
            self.kept.update(
                {block: KeptNumbers(first, second, n) for n, block in enumerate(blocks)}
            )

    def _set_numbers(self, cycle: Cycle, numbers: Iterable[int], count: int) -> list[int]:
        """Set the numbers of a state, `count` cycles later; those of the engine are left."""
        left = iter(numbers)
        self.flow, self.back, self.shared, self.ready = islice(left, 4)
        for tensors in self._moving_tensors(cycle):
            tensors[:] = islice(left, len(tensors))
        phase, later = cycle.phase, count * cycle.length
        names, places = phase.names, phase.places
        self.waiting = {
            names[places[name] + later]
            if places.get(name, cycle.end) < cycle.end
            else name: tensors
            for name, tensors in self.waiting.items()
        }
        return list(left)
