"""The program of a run file, run by its own tool on fake tensors like a user's script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...pytorch.modelling.huggingface.flash import FLASH
from ...pytorch.replay.settings import AllocatorSettings
from ...runfile.config import RunFile
from ...runfile.program import Program
from ...runfile.read import as_dict
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...tools.read import read
from ...tools.translation.tools import start_problems
from ...training.optimizers import OPTIMIZERS
from ..jobs.job import FAKE, NONE, Job, World, run
from ..trace.coverage import INSTEAD, UNKNOWN, USE_SDPA, not_traced
from ..trace.run import STEPS, RunTrace, run_trace
from .launch import Launch
from .run import record_script

if TYPE_CHECKING:
    from .simulation import Simulation

ENGINES = ("pytorch_ddp", "fsdp")
STARTED = "model"  # the phase that ends where training begins


def trace_program(
    source: str | Path | Mapping[str, Any] | RunFile,
    *,
    rank: int = 0,
    steps: int = STEPS,
    allocator: AllocatorSettings | None = None,
) -> RunTrace:
    """The trace of a program's first steps, on rank 0."""
    file = read(source).file
    assert file.program is not None
    resolved = resolve(file)
    problems = [*_uncovered(file.program, resolved, rank)]
    if problems:
        raise InputError(problems)
    launch = Launch(
        target=file.program.tool,
        ranks=resolved.hardware.num_gpus,
        ranks_per_node=resolved.run.gpus_per_node,
    )
    text = msgspec.json.encode((as_dict(file), steps)).decode()
    recording = record_script(launch, resolved, 0, {}, program=text)
    notes = tuple(recording.notes)
    return run_trace(
        resolved, recording.stream, recording.makers, recording.kinds, notes, allocator
    )


def _uncovered(program: Program, resolved: ResolvedRun, rank: int) -> Iterator[str]:
    """A sentence for each choice of the program that a trace does not cover."""
    chosen, engine = resolved.run, resolved.engine
    yield from start_problems(program.tool)
    if rank:
        yield f"rank {rank} of a program is not traced, only rank 0; leave --rank out"
    if engine.name not in ENGINES:
        yield f"a program under {engine.title} is not traced; {INSTEAD}"
    if chosen.compile:
        yield not_traced("a compiled program", "inductor writes kernels for a real GPU")
    if program.args.get("use_vllm"):
        yield not_traced("vLLM beside a program", "it needs a real GPU")
    if chosen.attention in FLASH:
        why = f"its kernels {UNKNOWN}"
        yield not_traced(f"attn_implementation={chosen.attention!r}", why, USE_SDPA)
    if chosen.quantization:
        why = f"bitsandbytes' kernels {UNKNOWN}"
        yield f"quantized weights ({chosen.quantization}) are not traced: {why}; {INSTEAD}"
    if OPTIMIZERS[chosen.optimizer].paged:
        why = "bitsandbytes asks the driver for pages"
        yield not_traced(f"the paged optimizer {chosen.optimizer!r}", why)


def run_program(text: str, simulation: Simulation) -> None:
    """Run a program in the process of a script; `text`: its run file and steps, as JSON."""
    data, steps = msgspec.json.decode(text)
    file = read(data).file
    resolved = resolve(file)
    simulation.watch.on_first_module = lambda: None  # the program says where training begins

    def mark(name: str) -> None:
        if name == STARTED:
            simulation.steps.begin()

    world = World(
        device="cuda",
        mark=mark,
        process_group=NONE if resolved.hardware.num_gpus == 1 else FAKE,
        steps=steps,
        has_weights=False,
    )
    run(Job(file=file, resolved=resolved, world=world))
