"""The allocation stream of a generation: passes in order, layer by layer."""

from __future__ import annotations

from ...ledger.ledger import EMBEDDED, PARAM, Ledger
from ..step.block_events import BlockRun
from ..step.cycles import PhaseInstants
from ..step.entry_writer import Tensors, rename
from ..step.stream_phases import Phase
from ..step.stream_writer import StreamWriter

LOAD, GENERATE, PLAIN = "load", "generate", "prefill"  # titles of the marks
SCORES = -3  # the block that chooses the next token


class PassEvents(BlockRun, frozen=True, kw_only=True):
    """One block in one pass, which trains nothing. Its events' tensors, by number:

    - `cache_before`, `cache_after`: the cache before and after the pass.
    - `named`: those to which the model's loop still refers when the next layer runs.
    - `casts`: weights that autocast has cast; `returns`: the model's forward ends with this block,
      and frees them.
    - `embedded`: its input is the embedding's output, to which the model refers until the last
      layer has run.
    """

    cache_before: tuple[int, ...] = ()
    cache_after: tuple[int, ...] = ()
    named: tuple[int, ...] = ()
    casts: tuple[int, ...] = ()
    returns: bool = False
    embedded: bool = False


class GenerationStreamWriter(StreamWriter):
    """Tracks each layer's cache, and the tensors to which the model's loop still refers."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.cache: dict[int, Tensors] = {}
        self.named: Tensors = []

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """Two phases: loading the model, then all passes."""
        starts = phases[0].names
        rest = [name for name in self.alive if name not in starts]
        chooses = any(run.block == SCORES for run in self.plays.values())
        return [Phase(LOAD, starts), Phase(GENERATE if chooses else PLAIN, rest)]

    def mark(self, phase: Phase) -> None:
        """Mark the end of a phase; after packing weights, cached memory returns to the driver."""
        if phase.title == LOAD and any(
            e.kind == PARAM and e.script is not None for e in self.entries
        ):
            self.stream.empties.append(len(self.events))
        super().mark(phase)

    def sign(self, phase: PhaseInstants, place: int) -> None:
        """No instant has an equal: each layer has a cache of its own."""

    def forward(self, block_run: BlockRun) -> None:
        """A block runs: its cache is replaced, and its output is the next one's input."""
        assert isinstance(block_run, PassEvents)
        block, events = block_run.script, block_run.script.forward
        if block_run.embedded:
            self.flow = self._embedded()
            events = tuple(event for event in events if event != ~block.entry)
        ids = self._bind(block, self.flow)
        for number, old in zip(
            block_run.cache_before, self.cache.get(block_run.block, ()), strict=True
        ):
            rename(ids, number, old)
        self._play(ids, events)
        self.free(self.named)
        self.named = [ids[number] for number in block_run.named]
        self.cached += [ids[number] for number in block_run.casts]
        if block_run.returns:
            self.free(self.cached)
            self.cached = []
        if block_run.cache_after:
            self.cache[block_run.block] = [ids[number] for number in block_run.cache_after]
        self.flow = -1 if block_run.block == SCORES or block.exit < 0 else ids[block.exit]

    def finish(self) -> None:
        """Free all that is alive: the generation is over."""
        flow = [] if self.flow < 0 else [self.flow]
        caches = [tensor for tensors in self.cache.values() for tensor in tensors]
        self.free([*self.named, *flow, *caches])
        self.cache, self.named, self.flow = {}, [], -1
        for index in list(self.held):
            self.keep(index, 0)

    def _embedded(self) -> int:
        """The tensor number of the embedding's output."""
        index = next(i for i in self.held if self.entries[i].role == EMBEDDED)
        return self.held[index][0][0]
