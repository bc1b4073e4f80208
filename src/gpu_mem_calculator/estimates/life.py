"""The phases of a training run's life: what each takes of a GPU and of a node's memory."""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..ledger.ledger import CPU
from ..run.engine_row import EngineRow
from ..run.phases import (
    DECODE,
    EVALUATION,
    PREFILL,
    RESUMING,
    SAVING,
    SAVING_OPTIMIZER,
    STARTUP,
    LifePhase,
)
from ..training.engines import engine_row
from ..training.life.loading import GENERATION_BYTES, loading, package_bytes, starting, worker_bytes
from ..training.life.merging import merging
from ..training.life.resuming import RESUMES, resuming
from ..training.life.saving import saving, saving_optimizer
from ..training.step.between_steps import resting
from ..training.step.stream import BETWEEN as MARKS
from .node import FIRST, STEADY, PhaseMemory

if TYPE_CHECKING:
    from .figures import Figures


def life(figures: Figures) -> list[PhaseMemory]:
    """The phases of a training run, in order."""
    return list(_phases(figures))


def _phases(figures: Figures) -> Iterator[PhaseMemory]:
    resolved = figures.resolved
    ranks = resolved.hardware.gpus_per_node
    libraries = resolved.host_libraries[1]
    before = list(_loading(figures))
    for found in before[:1]:
        yield _memory(found, ranks)
    if before:
        libraries += package_bytes(resolved.run)

    def after_generation(name: str) -> int:
        """What generate imports, from its phase on."""
        before = (STARTUP, FIRST, STEADY, EVALUATION)
        return GENERATION_BYTES if resolved.run.generates and name not in before else 0

    def workers(name: str) -> int:
        """Of the data loader's processes; an evaluation has a loader of its own."""
        loaders = {FIRST: 1, STEADY: 1, EVALUATION: 2}.get(name, 0)
        return loaders * worker_bytes(resolved.run)

    every = {i.phase for i in figures.ledgers[figures.busiest].instants if i.present}
    steps = every - {STARTUP, *MARKS}

    def memory(name: str, gpu: int, phases: set[str], evicted: int = 0) -> PhaseMemory:
        ledgers, each = figures.ledgers, libraries + evicted + after_generation(name)
        host = ledgers.host_bytes(ranks, phases) + ranks * (each + workers(name))
        alone = ledgers.host_bytes(1, phases) + each
        return PhaseMemory(name=name, gpu_bytes=gpu, host_bytes=host, process_bytes=alone)

    if resolved.run.new_tokens is not None:
        for phase in (STARTUP, PREFILL, DECODE):
            peak = int(figures.ledgers[figures.busiest].peak(phases=(phase,)))
            yield memory(phase, peak, {phase})
        return
    ledger = figures.ledgers[figures.busiest]
    begun_at = (i for i in ledger.instants if i.phase == STARTUP and i.where != RESUMING)
    starts = max((int(ledger.at(i)) for i in begun_at), default=0)
    if figures.replayed is not None and not resolved.run.resuming:  # which is a phase of its own
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
    asked = (SAVING, SAVING_OPTIMIZER, *((RESUMING,) if resolved.run.resuming else ()))
    for found in _checkpoints(figures):
        if found.name not in every:
            rest = libraries + _at_rest(figures) + after_generation(found.name)
            each = 0 if found.own_process else rest
            yield _memory(found, ranks, each, asked=found.name in asked)


def _at_rest(figures: Figures) -> int:
    """What each rank has on the host between two steps, such as offloaded states."""
    ledger = figures.ledgers[figures.busiest]
    return int(ledger.heights(CPU)[resting(ledger)]) + figures.evicted


def _step_peaks(figures: Figures) -> tuple[int, int]:
    """The peaks of the first step and of those after it, without what runs between steps."""
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


def _engine_row(figures: Figures) -> EngineRow | None:
    """The engine's row; None where what is trained is not known by its parameters."""
    run = figures.resolved.run
    if run.record is not None or run.new_tokens is not None:
        return None
    return engine_row(figures.resolved.engine.name)


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
    """Loading, and what start-up has of it; Megatron's engines have their own ways."""
    row, run = _engine_row(figures), figures.resolved.run
    if row is not None and not row.megatron:
        yield loading(run, row, row.precision(run))
        yield starting(run, row, row.precision(run))


def _checkpoints(figures: Figures) -> Iterator[LifePhase]:
    """Saving, resuming, and merging adapters."""
    row, run = _engine_row(figures), figures.resolved.run
    if row is not None:
        precision, ledger = row.precision(run), figures.ledgers[figures.busiest]
        states = saving_optimizer(run, row, precision, ledger)
        resumed = resuming(run, row, precision, ledger)
        if resumed is not None and RESUMES in ledger.instants:  # which has the states once already
            resumed = replace(resumed, gpu_bytes=int(ledger.at(RESUMES)))
        yield from filter(None, (saving(run, row, precision, ledger), states, resumed))
        yield from merging(run, precision, ledger)
