"""Writes a ledger's entries and block events as allocations and frees of tensors."""

from __future__ import annotations

from functools import cached_property

from ...ledger.ledger import AFTER_EMBEDDING, AFTER_MASKS, EMBEDDED, FIRST_INPUT, WITH_INPUT
from ...pytorch.autograd.events import BlockEvents
from ...run.phases import BACKWARD, FORWARD
from .block_events import EMBEDDING, HEAD, BlockRun
from .entry_writer import EntryWriter, Numbers, Tensors, rename
from .stream_phases import Phase

MADE_LATER = (WITH_INPUT, AFTER_EMBEDDING, AFTER_MASKS)  # roles in the order of their entries


class StreamWriter(EntryWriter):
    """Writes the stream: at each instant its entries, then the events of its block.

    Engines that allocate in another way override its methods.
    """

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
                self.ready = self.input(int(block.sizes[block.entry]))
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
        events = block.later if block_run.goes else block.backward
        begin = 0
        if block_run.once is not None:
            ids, begin = self._bind(block, ids[block_run.once.entry]), block.recompute_at
            rename(ids, block.exit_grad, self.back)
            self._play(ids, events[:begin])
            if block_run.offloaded:
                rename(ids, block.entry, self.make(int(block.sizes[block.entry])))
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
