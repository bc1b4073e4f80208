"""Trace a run: the job of `jobs/` on fake tensors, then the allocator's replay."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from torch._subclasses.fake_tensor import FakeTensorMode

from ...estimates.margin import Margin, WithMargin, margin_of
from ...ledger.ledger import Ledger
from ...pytorch.replay.footprint import Footprint, ReplayPhase
from ...pytorch.replay.needs import NeedsSearch
from ...pytorch.replay.rounding import UNIT
from ...pytorch.replay.settings import AllocatorSettings
from ...pytorch.replay.stream import AllocationStream
from ...runfile.config import RunFile
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...tools.read import read
from ...training.step.workspaces import run_cublas_bytes
from ..jobs.inference import infer
from ..jobs.job import FAKE, NONE, Job, World, run
from ..jobs.model import NO_PROGRAM
from .attention import AttentionKernels
from .coverage import check_covered
from .cuda import as_on_cuda
from .huggingface import as_if_real, convertible_modules, simulated_generate, without_warnings
from .ledger import ledger_of
from .memory_kinds import KindWatcher, block_kinds
from .recorder import Recorder
from .stand_ins import stand_ins
from .storages import StorageMaker

STARTS = ("model", "init", "load")  # the phases of start-up
STEPS = 3  # the optimizer's state exists from the second on; the allocator is steady in the third


class RunTrace(WithMargin, Struct, frozen=True, kw_only=True):
    """The trace of a run on one rank: its four figures in bytes, the stream and the ledger."""

    resolved: ResolvedRun
    stream: AllocationStream
    makers: list[StorageMaker]  # what allocated each tensor of the stream
    kinds: list[str]  # the kind of memory of each
    footprint: Footprint
    search: NeedsSearch  # replays of the stream under caps
    ledger: Ledger
    allocated_bytes: int
    startup_bytes: int
    reserved_bytes: int
    needs_bytes: int
    device_bytes: int
    peak_phase: str
    notes: tuple[str, ...] = ()  # what a user should know about the kernels that ran

    @property
    def phases(self) -> dict[str, ReplayPhase]:
        """Peak, remaining and reserved bytes of each phase."""
        return self.footprint.phases

    @property
    def margin(self) -> Margin:
        """The shares of its margin."""
        return margin_of(self.resolved.run, self.resolved.engine.name)

    def survives(self, cap: int) -> bool:
        """Whether the run survives when torch may take at most `cap` bytes."""
        return self.search.survives(cap // UNIT)


def trace(
    source: str | Path | Mapping[str, Any] | RunFile,
    *,
    rank: int = 0,
    steps: int = STEPS,
    build: Callable[[], tuple[Any, Any]] | None = None,
    allocator: AllocatorSettings | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunTrace:
    """Trace a run file; `build` makes the user's model and batch instead of the file's.

    `progress` gets the name of each phase as it ends.
    """
    file = read(source).file
    resolved = resolve(file)
    check_covered(resolved, rank)
    recorder, kernels = Recorder(run_cublas_bytes(resolved.run)), AttentionKernels()
    watch = KindWatcher(recorder, progress)
    alone = resolved.hardware.num_gpus == 1 and resolved.engine.name != "deepspeed"
    world = World(
        device=device_of(resolved),
        mark=watch.mark,
        watch=watch,
        process_group=NONE if alone else FAKE,
        rank=rank,
        steps=steps,
    )
    engine = _engine(resolved, recorder)
    with (
        simulated_gpu(resolved, kernels),
        nullcontext() if resolved.run.compile else watch.modules(),
        recorder.recording(),
        engine,
        stand_ins() as apply,
        _compiler(resolved, recorder),
    ):
        job = Job(file=file, resolved=resolved, world=replace(world, stand_ins=apply), build=build)
        _serve(job) if file.inference is not None else run(job)
    if file.inference is not None:
        recorder.sums.clear()  # they are not sums of gradients: there are none
    kinds = block_kinds(watch, phase_of(recorder))
    stream, notes = recorder.recorded(), kernels.notes()
    return run_trace(resolved, stream, recorder.makers, kinds, notes, allocator)


def device_of(resolved: ResolvedRun) -> str:
    """The name of the GPU in a traced program; DeepSpeed distinguishes it from the host by name."""
    return "cuda" if resolved.engine.name == "deepspeed" else "cpu"


def _engine(resolved: ResolvedRun, recorder: Recorder) -> AbstractContextManager[None]:
    """The context that an engine needs besides torch's."""
    if resolved.engine.name != "deepspeed":
        return nullcontext()
    from .deepspeed import as_on_gpu

    return as_on_gpu(recorder, resolved)


def _compiler(resolved: ResolvedRun, recorder: Recorder) -> AbstractContextManager[None]:
    """The context in which torch.compile makes models that are recorded."""
    if not resolved.run.compile:
        return nullcontext()
    from .compiled import compiled_models

    return compiled_models(recorder, resolved.run)


def _serve(job: Job) -> None:
    """Run inference with transformers."""
    config = job.resolved.model.config
    if config is None:
        raise InputError(NO_PROGRAM)
    infer(to_builtins(job.file.inference), config, job.world)


@contextmanager
def simulated_gpu(resolved: ResolvedRun, kernels: AttentionKernels) -> Iterator[None]:
    """Make torch on a CPU behave as on the run's GPU; every change is undone at the end."""
    with ExitStack() as stack:
        for context in (
            without_warnings(),
            FakeTensorMode(allow_non_fake_inputs=True),
            *([] if resolved.run.compile else [as_if_real()]),
            convertible_modules(),
            *([] if resolved.run.new_tokens is None else [simulated_generate()]),
            as_on_cuda(resolved.run.compute_capability, kernels),
            torch.autograd.set_multithreading_enabled(False),
        ):
            stack.enter_context(context)
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    gc.collect()


def run_trace(
    resolved: ResolvedRun,
    stream: AllocationStream,
    makers: list[StorageMaker],
    kinds: list[str],
    notes: tuple[str, ...] = (),
    allocator: AllocatorSettings | None = None,
) -> RunTrace:
    """The trace of a recorded run: its stream is replayed."""
    search = NeedsSearch(stream, allocator or resolved.allocator)
    footprint = search.unlimited
    loaded = [name for name in STARTS if name in footprint.phases]
    steps = {name: phase for name, phase in footprint.phases.items() if name not in loaded}
    peak = max(steps, key=lambda name: steps[name].peak_bytes)
    outside = sum(size for _, size, _ in resolved.outside_torch)
    return RunTrace(
        resolved=resolved,
        stream=stream,
        makers=makers,
        kinds=kinds,
        footprint=footprint,
        ledger=ledger_of(stream, makers, kinds, footprint),
        allocated_bytes=steps[peak].peak_bytes,
        startup_bytes=max(footprint.phases[name].peak_bytes for name in loaded),
        reserved_bytes=footprint.reserved_bytes,
        needs_bytes=search.needs_bytes(),
        search=search,
        device_bytes=footprint.reserved_bytes + outside,
        peak_phase=peak,
        notes=notes,
    )


def phase_of(recorder: Recorder) -> Callable[[int], str]:
    """A function from a block's number to the phase that allocated it."""
    allocated_at = {event: at for at, event in enumerate(recorder.events) if event >= 0}
    ends = [at for at, _ in recorder.marks]
    names = [name for _, name in recorder.marks]
    return lambda number: names[min(bisect_right(ends, allocated_at[number]), len(names) - 1)]
