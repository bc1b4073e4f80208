"""The stream of a DeepSpeed rank: blocks play, and a keeper does DeepSpeed's part."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from ...autograd.events import BlockEvents
from ...ledger.ledger import IN_FLIGHT, INPUTS_IN_FLIGHT, Ledger
from ...run.phases import BACKWARD, FORWARD
from ...step.block_events import EMBEDDING, BlockRun
from ...step.stream_writer import Phase, StreamWriter
from .hook_points import BEFORE, GRADIENT, Cue, backward_cues, forward_cues
from .rank import ZeroRank

MATMUL = "matmul"


class ZeroStreamWriter(StreamWriter):
    """Plays blocks, and tells the keeper of every gradient and, where it asks, every module.

    Tensors may be made on other CUDA streams than torch's own: `queue` is their number.
    """

    def __init__(
        self,
        ledger: Ledger,
        keeper: Callable[[ZeroStreamWriter], ZeroRank],
        *,
        on_host: bool = False,
    ) -> None:
        """`on_host`: checkpointed inputs go to the host, but for the newest."""
        super().__init__(ledger)
        self.on_host = on_host
        self.away: set[int] = set()  # blocks whose input is on the host
        self.checkpointed: set[int] = set()
        self.in_flight = {i for i, entry in enumerate(self.entries)
                          if entry.role in (IN_FLIGHT, INPUTS_IN_FLIGHT)}  # fmt: skip
        self.later = {i.name for i in ledger.instants if i.micro_batch and not i.step}
        self.backs = False  # whether a backward has begun that is not over
        self.keeper = keeper(self)

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """A new tensor on a CUDA stream."""
        made = self.make(size)
        if queue:
            self.elsewhere[made] = queue
        return made

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self.stream.sizes[tensor]

    def empty_cache(self) -> None:
        """Everything cached goes back to the driver."""
        self.stream.empties.append(len(self.stream.events))

    def begin(self, phase: Phase) -> None:
        """A phase of a micro-batch begins; a step belongs to the last one."""
        if phase.kind in (FORWARD, BACKWARD):
            self.keeper.micro = phase.micro_batch

    def leave(self, name: str, *, gradients: bool) -> None:
        """A phase is over; DeepSpeed's part of backward comes before the model lets go."""
        if self.backs:
            if self.back >= 0:  # the stage's input has its gradient, which is sent off
                self.free((self.back,))
                self.back = -1
            self.keeper.epilogue()
            self.backs = False
        super().leave(name, gradients=gradients)

    def visit(self, name: str) -> None:
        """Go on to an instant: entries first, then the block or DeepSpeed at work."""
        table, play = self._table(name), self.plays.get(name)
        if self.keeper.micro and play is not None and play.forward and name not in self.later:
            # no forward comes behind the first backward: this one is among those that wait
            table = {i: n for i, n in table.items() if i not in self.in_flight}
        if self.back >= 0 and play is None and not self.kept:
            self.free((self.back,))
            self.back = -1
        for index in [i for i in self.held if i not in table]:
            self.keep(index, 0)
        for index, copies in table.items():
            self.keep(index, copies)
        if name == "startup":
            self.keeper.startup()
        elif name == "optimizer":
            self.keeper.step()
        elif play is not None and play.block == EMBEDDING:
            self.table(play.script)
        elif play is not None:
            (self.forward if play.forward else self.backward)(play)

    def forward(self, play: BlockRun) -> None:
        """A block runs forward: its output is the next one's input."""
        if not self.kept:
            self.keeper.begin()
        script = play.once or play.script
        ids = self._bind(script, self.flow)
        self._cued(play.block, ids, script.forward, forward_cues(script))
        self.flow = ids[script.exit]
        before = self.kept.get(play.block - 1)
        if self.on_host and play.block - 1 in self.checkpointed and before is not None:
            self.free((before[script.entry],))
            self.away.add(play.block - 1)
        self.kept[play.block] = ids
        if play.once is not None:
            self.checkpointed.add(play.block)

    def backward(self, play: BlockRun) -> None:
        """A block runs backward; a checkpointed one runs forward again before."""
        script, ids = play.script, self.kept.pop(play.block)
        self.backs = True
        if self.flow >= 0:  # the loss itself
            self.free((self.flow,))
            self.flow = -1
        if self.back < 0:
            self.back = self.make(int(script.sizes[script.exit_grad]))
        output: list[int] = []
        self._bring_back(play, ids)
        if play.once is not None:
            ids = self._bind(script, ids[play.once.entry])
            self._cued(play.block, ids, script.forward, forward_cues(script))
            output = [ids[script.exit]]
            if not play.reentrant:
                self.free(output)
                output = []
        ids[script.exit_grad] = self.back
        grads = [ids[tensor] for _, tensor in script.drops]
        self._cued(play.block, ids, script.backward, self._back_cues(script), grads)
        self.free(ids[tensor] for tensor in script.left)
        if play.once is not None:
            self.free((*output, ids[script.entry]))
        self.back = ids[script.entry_grad] if script.entry_grad >= 0 else -1

    def _bring_back(self, play: BlockRun, ids: list[int]) -> None:
        """The block's own input comes from the host, and the next one's."""
        for block, tensors in ((play.block, ids), (play.block - 1, self.kept.get(play.block - 1))):
            if block in self.away and tensors is not None:
                entry = play.script.entry
                tensors[entry] = self.make(self.size(tensors[entry]))
                self.away.remove(block)

    def table(self, script: BlockEvents) -> None:
        """Backward of the embedding; the gradient of a table that the head shares is there."""
        self.backs = True
        self.keeper.before(EMBEDDING, 0, forward=False)
        if self.back < 0:  # a stage without layers
            self.back = self.make(int(script.sizes[script.exit_grad]))
        ids = self._bind(script, self.keeper.shared)
        self.keeper.shared = -1
        ids[script.exit_grad] = self.back
        self._play(ids, script.backward)
        self.back = -1
        for number in range(len(script.drops) - 1, -1, -1):
            self.keeper.gradient(EMBEDDING, number, ids[script.drops[number][1]])

    def _back_cues(self, script: BlockEvents) -> Iterator[Cue]:
        """What comes between the events of backward, in order."""
        if self.late and script.matmul >= 0:
            yield script.matmul, MATMUL, 0
        yield from backward_cues(script)

    def _cued(
        self, block: int, ids: list[int], events: tuple[int, ...], cues: Iterable[Cue],
        grads: list[int] | None = None,
    ) -> None:  # fmt: skip
        """Events, with what the keeper does between them; backward has `grads` of weights."""
        forward = grads is None
        done, keeper = 0, self.keeper
        for position, kind, number in sorted(cues, key=lambda cue: cue[0]):
            self._play(ids, events[done:position])
            done = max(done, position)
            if kind == GRADIENT:
                keeper.gradient(block, number, grads[number] if grads else -1)
            elif kind == MATMUL:
                for index in self.late:
                    self.keep(index, 1)
                self.late = set()
            elif kind == BEFORE:
                keeper.before(block, number, forward=forward)
            else:
                keeper.behind(block, number, forward=forward)
        self._play(ids, events[done:])
