"""A generation as a stream of allocations: pass after pass, layer after layer."""

from __future__ import annotations

from ..ledger.ledger import EMBEDDED, PARAM, Ledger
from ..step.block_events import BlockRun
from ..step.stream_writer import Phase, StreamWriter, Tensors

LOAD, GENERATE, PLAIN = "load", "generate", "prefill"  # what ends at each mark
SCORES = -3  # a block: the next token is chosen


class PassEvents(BlockRun, frozen=True, kw_only=True):
    """One block's pass without a graph.

    `given` are the numbers of the cache that it finds, `kept` of the one that it leaves, `named`
    of what the model's loop still names when the next layer runs. `embedded`: its input is the
    embedding's output, which the model names until its stack is done.
    """

    given: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    named: tuple[int, ...] = ()
    embedded: bool = False


class GenerationStreamWriter(StreamWriter):
    """Knows the cache of each layer, and what the last token was chosen from."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.cache: dict[int, Tensors] = {}
        self.named: Tensors = []

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """The model is loaded; then everything else."""
        starts = phases[0].names
        rest = [name for name in self.tables if name not in starts]
        chooses = any(play.block == SCORES for play in self.plays.values())
        return [Phase(LOAD, starts), Phase(GENERATE if chooses else PLAIN, rest)]

    def mark(self, phase: Phase) -> None:
        """A phase ends; what packing weights has left behind goes back to the driver."""
        if phase.title == LOAD and any(
            e.kind == PARAM and e.script is not None for e in self.entries
        ):
            self.stream.empties.append(len(self.stream.events))
        super().mark(phase)

    def forward(self, play: BlockRun) -> None:
        """A block runs: its cache is made anew, its output is the next one's input."""
        assert isinstance(play, PassEvents)
        script, events = play.script, play.script.forward
        if play.embedded:
            self.flow = self._embedded()
            events = tuple(event for event in events if event != ~script.entry)
        ids = self._bind(script, self.flow)
        for number, old in zip(play.given, self.cache.get(play.block, ()), strict=True):
            ids[number] = old
        self._play(ids, events)
        self.free(self.named)
        self.named = [ids[number] for number in play.named]
        if play.kept:
            self.cache[play.block] = [ids[number] for number in play.kept]
        self.flow = -1 if play.block == SCORES or script.exit < 0 else ids[script.exit]

    def _embedded(self) -> int:
        """The number of the embedding's output."""
        index = next(i for i in self.held if self.entries[i].role == EMBEDDED)
        return self.held[index][0][0]
