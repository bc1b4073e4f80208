"""The calculator: from a run file to the memory it needs, and the ledgers the numbers come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.ledger import Ledger
from ..run.cuda.runtimes import renamed_ledger, renamed_server
from ..run.run import Run
from ..run.served import NamedBytes, ServerMemory
from ..runfile.config import (
    EngineConfig,
    GPUConfig,
    ModelConfig,
    ParallelismConfig,
    RunFile,
    TrainingConfig,
)
from ..runfile.read import as_dict, gather_sections, given_keys
from ..runfile.resolve.resolve import resolve
from ..runfile.resolve.resolved_run import ResolvedRun
from ..runfile.text.errors import InputError
from ..tools.read import Asked, read
from .figures import Figures
from .fit_verdict import FITS, SHORT, UNSURE, clear_verdict, replay_verdict
from .memory_result import STEP as STEP
from .memory_result import memory_result, with_limits
from .node import on_node
from .other_cards import with_cards
from .result import MemoryResult
from .stage_ledgers import StageLedgers, ledger_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from ..tools.read import Anything
    from .stage_replay import StageReplay

    Source: TypeAlias = Anything | Asked


class Estimate(Struct, frozen=True, kw_only=True):
    """A result and what it was computed from.

    - result: the figures that are printed
    - resolved: the run with every choice made
    - ledgers: one for each pipeline stage
    - replayed: the allocator replay of the busiest stage; None where only the ledger was computed
    - served: the memory of each pipeline stage, for servers that give a pool to their cache
    - asked: what was read, a command or a tool's file with its reading
    """

    result: MemoryResult
    resolved: ResolvedRun
    ledgers: tuple[Ledger, ...]
    replayed: StageReplay | None = None
    served: tuple[ServerMemory, ...] = ()
    asked: Asked | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the busiest pipeline stage."""
        return self.ledgers[self.result.busiest_stage]

    @property
    def serves(self) -> bool:
        """Whether this is an inference run."""
        return self.resolved.run.new_tokens is not None

    @property
    def outside_torch(self) -> tuple[NamedBytes, ...]:
        """What CUDA and its libraries take outside torch on a GPU of the busiest stage."""
        if self.served:
            return self.served[self.result.busiest_stage].outside
        return self.resolved.outside_torch


def estimate(source: Source | Struct, *sections: Struct, replay: bool = True) -> MemoryResult:
    """Estimate a run: a run file, a command, or another tool's file, as its path, its text or its
    data; the words of a command; or config objects in any order.

    Without `replay` only the ledger is computed, in about a millisecond: reserved_bytes and
    needs_bytes are None, and the total is without what the allocator adds.
    """
    if isinstance(source, Struct) and not isinstance(source, RunFile | Asked):
        source = gather_sections(source, *sections)
    elif sections:
        raise InputError(["estimate takes one run, or config objects such as ModelConfig"])
    found = full_estimate(source, replay=replay)
    return (with_other_cards(found) if replay else found).result


def full_estimate(source: Source, *, replay: bool = True) -> Estimate:
    """Estimate a run and return its ledgers with the result; `replay` as in `estimate`."""
    asked = read(source)
    file = asked.checked(_name_problems)
    resolved = resolve(file, asked.notes)
    if resolved.engine.serve is not None:
        return replace(_estimate_server(file, resolved), asked=asked)
    figures = training_figures(resolved, replay=replay)
    resolved = figures.resolved
    stage, busiest, ledgers = figures.replayed, figures.busiest, (*figures.ledgers,)
    if stage is not None:
        from .stage_replay import with_block_rounding

        rounded = with_block_rounding(ledgers[busiest], stage)
        ledgers = (*ledgers[:busiest], rounded, *ledgers[busiest + 1 :])
    result = memory_result(file, replace(figures, ledgers=_known(ledgers)))
    return Estimate(result=result, resolved=resolved, ledgers=ledgers, replayed=stage, asked=asked)


def training_figures(
    resolved: ResolvedRun, *, replay: bool = True, ledgers: StageLedgers | None = None
) -> Figures:
    """The figures of a training run that decide whether it fits."""
    drawn = None
    if replay and resolved.lengths is not None:
        from .drawn import settled

        resolved, drawn = settled(resolved)
    ledgers = ledgers or stage_ledgers(resolved)
    peaks = ledgers.peaks(STEP)
    busiest = peaks.index(max(peaks))
    stage = None
    if replay:
        from .stage_replay import replay_peaks

        stage = replay_peaks(resolved, busiest, *ledgers.highest(busiest))
    if stage is not None:
        peaks[busiest] = stage.allocated_bytes
    outside = sum(size for _, size, _ in resolved.outside_torch)
    if drawn is not None and stage is not None:
        from .drawn import under_cap

        drawn = under_cap(resolved, drawn, stage, resolved.hardware.memory_bytes - outside)
    return Figures(
        resolved=resolved,
        ledgers=ledgers,
        peaks=peaks,
        busiest=busiest,
        replayed=stage,
        outside=outside,
        drawn=drawn,
    )


def with_other_cards(estimate: Estimate) -> Estimate:
    """An estimate with the verdict on other cards that the name of its GPU can mean."""
    result = with_cards(estimate.result, estimate.resolved.hardware, verdict)
    return replace(estimate, result=result)


def _name_problems(data: Any) -> list[str]:
    from ..runfile.name_problems import (
        name_problems,  # it knows the servers, which training does not load
    )

    return name_problems(data)


def verdict(source: Source) -> str:
    """The verdict of an estimate; replays only where the ledger leaves it open."""
    file = read(source).file
    resolved = resolve(file)
    if resolved.engine.serve is not None:
        return _estimate_server(file, resolved).result.verdict
    word = resolved_verdict(resolved)
    if word == UNSURE or not (resolved.limits or resolved.hardware.node_bytes):
        return word
    return full_estimate(file).result.verdict  # bounds need the headroom, and the host its figures


def resolved_verdict(resolved: ResolvedRun) -> str:
    """The verdict of a run that is not a server's by its figures, without what is not modelled;
    replays only where the ledger leaves it open.
    """
    if resolved.lengths is not None:
        from .drawn import hardest

        resolved = hardest(resolved)
    ledgers = stage_ledgers(resolved)
    peaks = ledgers.peaks(STEP)
    busiest = peaks.index(max(peaks))
    outside = sum(size for _, size, _ in resolved.outside_torch)
    has, highest = resolved.hardware.memory_bytes, int(ledgers[busiest].peak())
    word = clear_verdict(peaks[busiest] + outside, highest + outside, has)
    if word == SHORT:
        return SHORT if resolved.lengths is None or resolved.lengths.known else UNSURE
    from .stage_replay import replay_stage, too_large

    if too_large(ledgers[busiest], resolved.allocator):
        return UNSURE
    if word == FITS:
        return FITS
    if resolved.lengths is not None:
        return training_figures(resolved).verdict
    stage = replay_stage(resolved, busiest, ledgers[busiest])
    assert stage is not None
    return replay_verdict(stage, has - outside)


def surely_fits(estimate: Estimate) -> bool:
    """Whether the verdict of an estimate by the ledger is `fits` by a replay; quicker than
    `verdict` where it is not.
    """
    from .stage_replay import replay_stage

    resolved = estimate.resolved
    if on_node(FITS, estimate.result.host) != FITS:
        return False
    if resolved.lengths is not None:
        return resolved_verdict(resolved) == FITS
    stage = replay_stage(resolved, estimate.result.busiest_stage, estimate.ledger)
    if stage is None:
        return False
    cap = resolved.hardware.memory_bytes - sum(size for _, size, _ in resolved.outside_torch)
    if cap < stage.enough_bytes and not stage.survives(cap - stage.most_margin_bytes(cap)):
        return False
    return replay_verdict(stage, cap) == FITS


def verdict_by_ledger(result: MemoryResult) -> str:
    """What a result without a replay makes certain; `cannot_tell` where a replay must decide."""
    if result.serving is not None:
        return result.verdict
    outside = result.outside_torch_bytes
    step = result.allocated_bytes + outside
    highest = max(step, (result.startup_bytes or 0) + outside)
    return on_node(clear_verdict(step, highest, result.gpu_memory_bytes), result.host)


def _estimate_server(file: RunFile, resolved: ResolvedRun) -> Estimate:
    """Estimate a server. It takes all memory it may, so it fits where it starts and holds the users
    that are asked for; the stage that limits it decides.
    """
    from .server_life import with_life
    from .server_result import (
        cache_use_note,
        excess_limit,
        serving_headroom,
        serving_result,
        serving_verdict,
    )

    assert resolved.engine.serve is not None
    serve = resolved.engine.serve
    served = tuple(renamed_server(run, serve(run)) for run in _stage_runs(resolved))
    ledgers = tuple(rank.ledger for rank in served)
    made = _known(ledgers)
    peaks = made.peaks(STEP)
    stage = min(range(len(served)), key=lambda i: _limiting_rank_first(served[i]))
    limiting = served[stage]
    outside = sum(size for _, size, _ in limiting.outside)
    figures = Figures(
        resolved=resolved, ledgers=made, peaks=peaks, busiest=stage, replayed=None, outside=outside
    )
    result = memory_result(file, figures)
    serving = serving_result(
        limiting, resolved.model.address, served, resolved.run, _start_words(file, resolved)
    )
    taken, has = peaks[stage] + outside - limiting.others_bytes, result.gpu_memory_bytes
    word = serving_verdict(serving, has, taken)
    result = replace(
        with_life(result, resolved, served, outside),
        serving=serving,
        device_bytes=taken,
        needs_bytes=limiting.needs_bytes,
        margin_bytes=0,
        fits_on_gpu=word == FITS,
        verdict=word,
        headroom_bytes=serving_headroom(serving, limiting, has, taken),
        warnings=[*result.warnings, *limiting.notes, *cache_use_note(resolved.run, served)],
        limits=[],
    )
    limits = (*resolved.limits, *excess_limit(serving, has, taken))
    result = with_limits(result, limits, resolved.run)
    return Estimate(result=result, resolved=resolved, ledgers=ledgers, served=served)


def _start_words(file: RunFile, resolved: ResolvedRun) -> tuple[str, ...]:
    """The words of the program that starts the server in its own way; empty for none."""
    if not resolved.run.options.get("ollama_version"):
        return ()
    from ..tools.ollama.start import start_words  # few runs ask for it

    assert file.inference is not None
    model = file.model.name or ""
    return start_words(resolved.run, given_keys(file.inference), model)


def _limiting_rank_first(rank: ServerMemory) -> tuple[bool, bool, int, int]:
    """Sort key: the rank that limits the server comes first (has a problem; has a pool; holds the
    fewest tokens; needs most).
    """
    return not rank.problem, not rank.room_bytes, rank.tokens, -rank.needs_bytes


def _stage_runs(resolved: ResolvedRun) -> Iterator[Run]:
    """The run of each pipeline stage."""
    return (replace(resolved.run, stage=stage) for stage in range(int(resolved.run.mesh.pp)))


def stage_ledgers(resolved: ResolvedRun) -> StageLedgers:
    """The ledger of each pipeline stage."""

    def ledger(stage: int) -> Ledger:
        run = replace(resolved.run, stage=stage)
        return renamed_ledger(run, ledger_of(resolved)(run))

    return StageLedgers(int(resolved.run.mesh.pp), ledger)


def _known(ledgers: tuple[Ledger, ...]) -> StageLedgers:
    """Ledgers that are made."""
    return StageLedgers(len(ledgers), ledgers.__getitem__)


class GPUMemoryCalculator:
    """Takes config objects; `calculate()` returns the result."""

    def __init__(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        parallelism_config: ParallelismConfig | None = None,
        engine_config: EngineConfig | None = None,
        gpu_config: GPUConfig | None = None,
    ) -> None:
        self.file = RunFile(
            model=model_config,
            training=training_config,
            parallelism=parallelism_config or ParallelismConfig(),
            engine=engine_config or EngineConfig(),
            hardware=gpu_config or GPUConfig(),
        )

    @classmethod
    def from_config_file(cls, path: str | Path) -> GPUMemoryCalculator:
        """A calculator for a run file."""
        file = read(path).file
        return cls(file.model, file.training, file.parallelism, file.engine, file.hardware)

    def calculate(self) -> MemoryResult:
        """Estimate the run."""
        return estimate(self.file)

    def to_dict(self) -> dict[str, Any]:
        """The run file as plain data."""
        data: dict[str, Any] = as_dict(self.file)
        return data
