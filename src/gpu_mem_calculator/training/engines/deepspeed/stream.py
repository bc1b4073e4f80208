"""The stream of a DeepSpeed rank: its blocks, and DeepSpeed's hooks between their events."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from ....ledger.ledger import IN_FLIGHT, INPUTS_IN_FLIGHT, TEMP, Ledger
from ....pytorch.autograd.events import BlockEvents
from ....run.phases import BACKWARD, FORWARD
from ...step.block_events import EMBEDDING, BlockRun
from ...step.cycles import Cycle, Numbers, PhaseInstants, State
from ...step.entry_writer import Tensors, rename, renumbered
from ...step.stream_phases import Phase
from ...step.stream_writer import OWN, StreamWriter
from .hook_points import BEFORE, GRADIENT, HookPoint, backward_hook_points, forward_hook_points
from .ledger import GROUPS
from .levels import GROUPS as NUMBERS
from .rank import ZeroRank

MATMUL = "matmul"


def _kind_and_name(name: Hashable) -> tuple[str, str]:
    """The ledger's words for a tensor of the rank; those of the optimizer's step have their own."""
    if name in NUMBERS:
        title, kind, _ = GROUPS[NUMBERS[name]]
        return kind, title
    return TEMP, f"optimizer step: {name[0] if isinstance(name, tuple) else name}"


GATHERED = _kind_and_name("")


class ZeroStreamWriter(StreamWriter):
    """Writes the events of blocks, and calls a `ZeroRank` at the hook points between them.

    `rank` makes the rank that allocates on this writer. `on_host`: checkpointed inputs are copied
    to the host, except for the newest (cpu_checkpointing).
    """

    def __init__(
        self, ledger: Ledger, rank: Callable[[ZeroStreamWriter], ZeroRank], *, on_host: bool = False
    ) -> None:
        super().__init__(ledger)
        self.on_host = on_host
        self.offloaded: set[int] = set()  # blocks whose input is on the host
        self.checkpointed: set[int] = set()
        self.in_flight = {
            i for i, entry in enumerate(self.entries) if entry.role in (IN_FLIGHT, INPUTS_IN_FLIGHT)
        }
        self.later = {i.name for i in ledger.instants if i.micro_batch and not i.step}
        self.in_backward = False
        self.rank = rank(self)

    def alive_tensors(self) -> Tensors:
        """The tensors that are alive between two steps, the rank's among them."""
        return [*super().alive_tensors(), *self.rank.alive_tensors()]

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """Allocate a tensor on a CUDA stream: 0 is torch's own, others are numbered from 1."""
        tensor = self.make(size)
        self.named_by_engine[tensor] = _kind_and_name(name)
        if queue:
            self.elsewhere[tensor] = queue
        return tensor

    def play_on(
        self, queue: int, events: Sequence[int], sizes: Sequence[int], numbers: dict[int, int]
    ) -> None:
        """Allocate and free tensors on a CUDA stream: tensor i of `events` has `sizes[i]` bytes,
        and while it is allocated its number is `numbers[i]`.
        """
        made, written, named = self.sizes, self.events, self.named_by_engine
        for event in events:
            if event < 0:
                written.append(~numbers.pop(~event))
            else:
                numbers[event] = tensor = len(made)
                named[tensor] = GATHERED
                made.append(sizes[event])
                written.append(tensor)
                if queue:
                    self.elsewhere[tensor] = queue

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self.sizes[tensor]

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache: free segments are returned to the driver."""
        self.stream.empties.append(len(self.events))

    def begin(self, phase: Phase) -> None:
        """A phase begins: the rank learns the number of the micro-batch. A step is part of the
        last one.
        """
        if phase.kind in (FORWARD, BACKWARD):
            self.rank.micro = phase.micro_batch

    def leave(self, name: str, *, gradients: bool) -> None:
        """A phase is over; DeepSpeed's epilogue of backward runs before the model's tensors are
        freed.
        """
        if self.in_backward:
            if self.back >= 0:  # the gradient of the stage's input is sent to the stage before
                self.free((self.back,))
                self.back = -1
            self.rank.epilogue()
            self.in_backward = False
        super().leave(name, gradients=gradients)

    def alive_at(self, name: str) -> dict[int, int]:
        """The copies of each entry, without micro-batches in flight in warm-up forwards: before the
        first backward every forward is one of those.
        """
        table, block_run = super().alive_at(name), self.plays.get(name)
        forward = block_run is not None and block_run.forward
        if self.rank.micro and forward and name not in self.later:
            return {i: n for i, n in table.items() if i not in self.in_flight}
        return table

    def sign(self, phase: PhaseInstants, place: int) -> Hashable:
        """What DeepSpeed does by itself has no equal, nor has a layer after which the rank does
        something else.
        """
        name = phase.names[place]
        block_run = self.plays.get(name)
        if self.on_host or block_run is None or not self.rank.regular(forward=block_run.forward):
            return None
        sign = super().sign(phase, place)
        return sign and (sign, name in self.later)

    def more_state(self) -> tuple[Hashable, list[int], list[int]]:
        """The rank's state."""
        return self.rank.state()

    def regular(self, cycle: Cycle, states: Sequence[State], begin: int, count: int) -> int:
        """Only while the rank does the same."""
        least = super().regular(cycle, states, begin, count)
        own = OWN + len(cycle.growing)
        return self.rank.alike([state.written[own:] for state in states], least)

    def go_on_more(self, numbers: list[int], written: list[int], count: int) -> None:
        """The rank has done the same, too."""
        self.rank.go_on(numbers, written, count)

    def work(self, name: str, block_run: BlockRun | None) -> None:
        """Start-up, the optimizer's step, or a block."""
        if name == "startup":
            self.rank.startup()
        elif name == "optimizer":
            self.rank.step()
        else:
            super().work(name, block_run)

    def forward(self, block_run: BlockRun) -> None:
        """A block runs forward. A checkpointed block before it has its input copied to the host."""
        if not self.kept:
            self.rank.begin()
        super().forward(block_run)
        before = self.kept.get(block_run.block - 1)
        if self.on_host and block_run.block - 1 in self.checkpointed and before is not None:
            self.free((before.first[(block_run.once or block_run.script).entry],))
            self.offloaded.add(block_run.block - 1)
        if block_run.once is not None:
            self.checkpointed.add(block_run.block)

    def before_backward(self, block_run: BlockRun, ids: Numbers) -> None:
        """The inputs of the block and of the next one to run backward come from the host."""
        self.in_backward = True
        block, entry = block_run.block, block_run.script.entry
        before = self.kept.get(block - 1)
        for number, numbers in ((block, ids), (block - 1, before and before.first)):
            if number in self.offloaded and numbers:
                rename(numbers, entry, self.make_like(numbers[entry]))
                self.offloaded.remove(number)

    def keep_gradients(self, block_run: BlockRun, ids: Numbers) -> None:
        """Nothing is left to do: the rank has got every gradient at its hook."""

    def embedding(self, block_run: BlockRun) -> None:
        """Backward of the embedding. Where the head shares its table, the head's gradient of it is
        added to the embedding's.
        """
        events = block_run.script
        self.in_backward = True
        self.rank.before(EMBEDDING, 0, forward=False)
        if self.back < 0:  # a stage without layers
            self.back = self.make_of(events, events.exit_grad)
        ids = self._bind(events, self.rank.shared)
        self.rank.shared = -1
        rename(ids, events.exit_grad, self.back)
        self.play_embedding(ids, events)
        self.back = -1
        for number in range(len(events.drops) - 1, -1, -1):
            self.rank.gradient(EMBEDDING, number, ids[events.drops[number][1]])

    def _forward(self, block_run: BlockRun, ids: Numbers, script: BlockEvents) -> None:
        self.free_masks()
        points = forward_hook_points(script)
        if self.waits_for(FORWARD) and script.forward_matmul >= 0:
            matmul = script.forward_matmul, MATMUL, 0
            points = sorted([*points, matmul], key=lambda point: point[0])
        self._with_hooks(block_run.block, ids, script.forward, points)

    def _backward(
        self, block_run: BlockRun, ids: Numbers, events: tuple[int, ...], begin: int
    ) -> None:
        block = block_run.script
        gradients = [ids[tensor] for _, tensor in block.drops]
        points = backward_hook_points(block)
        if self.waits_for(BACKWARD) and block.matmul >= 0:
            points = sorted([(block.matmul, MATMUL, 0), *points], key=lambda point: point[0])
        self._with_hooks(block_run.block, ids, events, points, gradients, begin=begin)

    def _with_hooks(
        self,
        block: int,
        ids: Numbers,
        events: tuple[int, ...],
        hook_points: Iterable[HookPoint],
        gradients: Tensors | None = None,
        *,
        begin: int = 0,
    ) -> None:
        """Write events from `begin` on and run the rank's hooks between them. `gradients`: tensors
        of the weights' gradients, None in a forward.
        """
        forward = gradients is None
        rank, written = self.rank, begin
        played = renumbered(events, ids)
        stays = {~tensor for tensor in self.named}
        for position, kind, number in hook_points:
            if position > written:
                self.events.fromlist([e for e in played[written:position] if e not in stays])
                written = position
            if kind == GRADIENT:
                rank.gradient(block, number, gradients[number] if gradients else -1)
            elif kind == MATMUL:
                self.first_matmul(FORWARD if forward else BACKWARD)
            elif kind == BEFORE:
                rank.before(block, number, forward=forward)
            else:
                rank.after(block, number, forward=forward)
        self.events.fromlist([e for e in played[written:] if e not in stays])
