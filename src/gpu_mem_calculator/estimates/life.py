"""A run's life: what each phase takes of a GPU and of a node's memory, and whether the node has it.

A node's memory is compared with what cannot be taken back: processes, and what is pinned. Pages of
mapped files are counted apart, since the kernel takes them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.ledger import CPU
from ..ledger.units import GIB, gib
from ..run.phases import (
    ASLEEP,
    CAPTURE,
    DECODE,
    EVALUATION,
    GENERATING,
    LOADING,
    MERGING,
    PREFILL,
    PROFILING,
    RESUMING,
    SAVING,
    SAVING_MERGED,
    SAVING_OPTIMIZER,
    SERVING,
    STARTUP,
    LifePhase,
)
from .fit_verdict import FITS, SHORT, UNSURE

if TYPE_CHECKING:
    from ..run.engine_row import EngineRow
    from .figures import Figures

MARGIN = 0.2
"""Of what the host is estimated to take: the worst error that the estimate is held to."""
USUAL = 64 * GIB  # more than this is said where nobody says what the node has
FIRST, STEADY = "first step", "later steps"
# By a phase's name: its title, and when it is.
TITLES = {
    LOADING: "loading the weights",
    SAVING_OPTIMIZER: "saving the optimizer",
    SAVING_MERGED: "saving merged",
    STARTUP: "start-up",
    FIRST: FIRST,
    STEADY: STEADY,
    EVALUATION: "evaluation",
    GENERATING: "generation",
    SAVING: "saving",
    RESUMING: "resuming",
    MERGING: "merging",
    PREFILL: "prefill",
    DECODE: "decode",
    PROFILING: "profiling pass",
    CAPTURE: "capture of graphs",
    SERVING: "serving, the cache full",
    ASLEEP: "asleep, at level 1",
}
WHEN = {
    LOADING: "while weights are loaded",
    SAVING_OPTIMIZER: "while the optimizer is saved",
    SAVING_MERGED: "while the merged model is saved",
    STARTUP: "at start-up",
    FIRST: "in the first step",
    STEADY: "in each step",
    EVALUATION: "in the evaluation",
    GENERATING: "while it generates",
    SAVING: "while it is saved",
    RESUMING: "while it is resumed",
    MERGING: "while adapters are merged",
    PREFILL: "in prefill",
    DECODE: "while it decodes",
    PROFILING: "in the profiling pass",
    CAPTURE: "while graphs are captured",
    SERVING: "while it serves",
    ASLEEP: "while it sleeps",
}


class PhaseMemory(Struct, frozen=True, kw_only=True):
    """A phase of a run's life, in bytes.

    - gpu_bytes: torch's peak on the busiest GPU
    - host_bytes: of a node, what cannot be taken back; file_bytes: pages of files on it
    - process_bytes: of the first rank's process, with the files' pages
    - disk_bytes: files of the whole job that it reads or writes
    - asked: whether the run does it; else it takes this if it does, and the verdict leaves it out
    """

    name: str
    gpu_bytes: int
    host_bytes: int
    process_bytes: int
    file_bytes: int = 0
    disk_bytes: int = 0
    asked: bool = True


class NodeMemory(Struct, frozen=True, kw_only=True):
    """The memory of a node: the phase that takes most, what it has, and the verdict.

    - bytes_per_node: what cannot be taken back; file_bytes_per_node: pages of files besides
    - node_bytes: what a node has, None where nobody says it; read_from: where it is said
    - verdict: None where it is not known what a node has
    - shared: whether the card has its memory of the same; then all figures are of both
    """

    bytes_per_node: int
    file_bytes_per_node: int
    phase: str
    node_bytes: int | None = None
    read_from: str = ""
    verdict: str | None = None
    shared: bool = False

    @property
    def is_large(self) -> bool:
        """Whether it is worth a word on the first screen: it decides, is above half of what a node
        has, or above 64 GiB where that is not known.
        """
        if self.node_bytes is None:
            return self.bytes_per_node > USUAL
        above_half = 2 * self.bytes_per_node > self.node_bytes and not self.shared
        return self.verdict != FITS or above_half

    @property
    def words(self) -> str:
        """`122 GiB of host RAM a node at start-up, of 128 (--mem=128G)`."""
        said = f" ({self.read_from})" if self.read_from else ""
        has = "" if self.node_bytes is None else f", of {gib(self.node_bytes, 0)}{said}"
        when, what = WHEN[self.phase], "for card and host" if self.shared else "of host RAM a node"
        return f"{gib(self.bytes_per_node, 0)} GiB {what} {when}{has}"


class SharedPool(Struct, frozen=True):
    """Of a memory that card and host share what is taken beside torch's peak, and what is open."""

    beside: int
    unsure_bytes: int


def life(figures: Figures) -> list[PhaseMemory]:
    """The phases of a training run, in order."""
    return list(_phases(figures))


def node_memory(
    phases: list[PhaseMemory],
    node_bytes: int | None,
    read_from: str = "",
    pool: SharedPool | None = None,
) -> NodeMemory:
    """The verdict on a node's memory; `pool`: the card has its memory of the same."""

    def taken_by(one: PhaseMemory) -> int:
        return one.host_bytes + (0 if pool is None else one.gpu_bytes + pool.beside)

    most = max((one for one in phases if one.asked), key=taken_by)
    taken = taken_by(most)
    word = None
    if node_bytes is not None:
        open_bytes = 0 if pool is None else pool.unsure_bytes
        word = node_verdict(most.host_bytes, node_bytes - taken + most.host_bytes, open_bytes)
    return NodeMemory(
        bytes_per_node=taken,
        file_bytes_per_node=max(one.file_bytes for one in phases if one.asked),
        phase=most.name,
        node_bytes=node_bytes,
        read_from=read_from if node_bytes is not None else "",
        verdict=word,
        shared=pool is not None,
    )


def node_verdict(taken: int, has: int, open_bytes: int = 0) -> str:
    """Whether a node has what is taken of it; it may have `open_bytes` less."""
    sure = taken * (1 + MARGIN) <= has - open_bytes
    return SHORT if taken > has else FITS if sure else UNSURE


def on_node(word: str, node: NodeMemory | None) -> str:
    """The verdict on a card with that on the memory of its node."""
    if node is None or node.verdict in (None, FITS):
        return word
    return SHORT if SHORT in (word, node.verdict) else UNSURE


def _phases(figures: Figures) -> Iterator[PhaseMemory]:
    from ..training.step.stream import BETWEEN as MARKS  # servers have none

    resolved = figures.resolved
    ranks = resolved.hardware.gpus_per_node
    libraries = resolved.host_libraries[1]
    before = list(_loading(figures))
    for found in before[:1]:
        yield _memory(found, ranks)
    if before:
        from ..training.life.loading import package_bytes

        libraries += package_bytes(resolved.run)

    def after_generation(name: str) -> int:
        """What generate imports, from its phase on."""
        from ..training.life.loading import GENERATION_BYTES

        before = (STARTUP, FIRST, STEADY, EVALUATION)
        return GENERATION_BYTES if resolved.run.generates and name not in before else 0

    every = {i.phase for i in figures.ledgers[figures.busiest].instants if i.present}
    steps = every - {STARTUP, *MARKS}

    def memory(name: str, gpu: int, phases: set[str], evicted: int = 0) -> PhaseMemory:
        ledgers, each = figures.ledgers, libraries + evicted + after_generation(name)
        host = ledgers.host_bytes(ranks, phases) + ranks * each
        alone = ledgers.host_bytes(1, phases) + each
        return PhaseMemory(name=name, gpu_bytes=gpu, host_bytes=host, process_bytes=alone)

    if resolved.run.new_tokens is not None:
        for phase in (STARTUP, PREFILL, DECODE):
            peak = int(figures.ledgers[figures.busiest].peak(phases=(phase,)))
            yield memory(phase, peak, {phase})
        return
    starts = max(figures.starts, default=0)
    if figures.replayed is not None:
        starts = figures.replayed.startup_bytes
    begun = memory(STARTUP, starts, {STARTUP})
    yield _started(begun, before[-1], ranks, libraries) if before else begun
    if figures.replayed is None:
        yield memory(STEADY, figures.allocated, steps, figures.evicted)
    else:
        first, later = _step_peaks(figures)
        yield memory(FIRST, first, steps, figures.evicted)
        yield memory(STEADY, later, steps, figures.evicted)
    for phase in (one for one in MARKS if one in every):
        yield memory(phase, _beside(figures, phase), {phase})
    for found in _checkpoints(figures):
        if found.name not in every:
            rest = libraries + _at_rest(figures) + after_generation(found.name)
            each = 0 if found.name == RESUMING else rest
            yield _memory(found, ranks, each, asked=found.name in (SAVING, SAVING_OPTIMIZER))


def _at_rest(figures: Figures) -> int:
    """What each rank has on the host between two steps, such as offloaded states."""
    ledger = figures.ledgers[figures.busiest]
    from ..training.step.between_steps import resting

    return int(ledger.heights(CPU)[resting(ledger)]) + figures.evicted


def _step_peaks(figures: Figures) -> tuple[int, int]:
    """The peaks of the first step and of those after it, without what runs between steps."""
    from ..training.step.stream import BETWEEN as MARKS

    assert figures.replayed is not None
    beside = tuple(MARKS.values())
    peaks: dict[bool, int] = {True: 0, False: 0}
    for mark, phase in figures.replayed.phases.items():
        if mark[:1] == "s" and mark[1:2].isdigit() and not mark.endswith(beside):
            first = mark.startswith("s0.")
            peaks[first] = max(peaks[first], phase.peak_bytes)
    return peaks[True], peaks[False]


def _beside(figures: Figures, phase: str) -> int:
    """The peak of what runs between steps."""
    from ..training.step.stream import BETWEEN as MARKS

    if figures.replayed is None:
        return max(int(one.peak(phases=(phase,))) for one in figures.ledgers)
    found = [one for mark, one in figures.replayed.phases.items() if mark.endswith(MARKS[phase])]
    return max(one.peak_bytes for one in found)


def _memory(found: LifePhase, ranks: int, libraries: int = 0, *, asked: bool = True) -> PhaseMemory:
    """A phase beside the steps, on a node with some ranks."""
    each = found.rank_bytes + libraries
    return PhaseMemory(
        name=found.name,
        gpu_bytes=found.gpu_bytes,
        host_bytes=each * ranks + found.first_bytes,
        process_bytes=(max if found.apart else add)(each + found.first_bytes, found.file_bytes),
        file_bytes=found.file_bytes,
        disk_bytes=found.disk_bytes,
        asked=asked,
    )


def _by_transformers(figures: Figures) -> EngineRow | None:
    """The engine's row where transformers loads and saves; None where the engine has its own way,
    or what is trained is no model of transformers.
    """
    run = figures.resolved.run
    if run.record is not None or run.new_tokens is not None:
        return None
    from ..training.engines import engine_row

    row = engine_row(figures.resolved.engine.name)
    return None if row.megatron else row


def _started(begun: PhaseMemory, found: LifePhase, ranks: int, libraries: int) -> PhaseMemory:
    """Start-up, at which most of the libraries are not there yet, and the weights may be."""
    less = found.rank_bytes - libraries
    alone = begun.process_bytes + less
    files = found.rank_bytes + found.file_bytes if found.apart else alone + found.file_bytes
    return replace(
        begun,
        host_bytes=begun.host_bytes + ranks * less,
        process_bytes=max(alone, files),
        file_bytes=found.file_bytes,
    )


def _loading(figures: Figures) -> Iterator[LifePhase]:
    """Loading, and what start-up has of it."""
    from ..training.life.loading import loading, starting

    row, run = _by_transformers(figures), figures.resolved.run
    if row is not None:
        yield loading(run, row, row.precision(run))
        yield starting(run, row, row.precision(run))


def _checkpoints(figures: Figures) -> Iterator[LifePhase]:
    """Saving, resuming, and merging adapters."""
    from ..run.engine_row import REPLICATE
    from ..training.life.checkpoints import merging, resuming, saving, saving_optimizer

    row, run = _by_transformers(figures), figures.resolved.run
    if row is not None:
        precision, ledger = row.precision(run), figures.ledgers[figures.busiest]
        states = saving_optimizer(run, row, precision, ledger)
        rest = resuming(run, precision, ledger) if row.ranks == REPLICATE else None
        yield from filter(None, (saving(run, row, precision, ledger), states, rest))
        yield from merging(run, precision, ledger)
