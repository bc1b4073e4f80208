"""The program of a run file, run by its own tool on fake tensors like a user's script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...pytorch.modelling.huggingface.attention_kernels import FLASH
from ...pytorch.replay.allocator import AllocatorSettings
from ...runfile.config import RunFile
from ...runfile.program import Program
from ...runfile.read import as_dict
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...tools.read import read
from ...tools.translation.tools import start_problems
from ...training.optimizers import OPTIMIZERS
from ..trace.coverage import INSTEAD
from ..trace.run import STEPS, RunTrace, run_trace
from .launch import Launch
from .run import record_script

ENGINES = ("pytorch_ddp", "fsdp")


def trace_program(
    source: str | Path | Mapping[str, Any] | RunFile,
    *,
    rank: int = 0,
    steps: int = STEPS,
    allocator: AllocatorSettings | None = None,
) -> RunTrace:
    """The trace of a program's first steps, on rank 0."""
    file = read(source)
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
    run, engine = resolved.run, resolved.engine
    fake = "know no fake tensors"
    yield from start_problems(program.tool)
    if rank:
        yield f"rank {rank} of a program is not traced, only rank 0; leave --rank out"
    if engine.name not in ENGINES:
        yield f"a program under {engine.title} is not traced; {INSTEAD}"
    if run.compile:
        yield f"a compiled program is not traced: inductor writes kernels for a real GPU; {INSTEAD}"
    if program.args.get("use_vllm"):
        yield f"vLLM beside a program is not traced: it needs a real GPU; {INSTEAD}"
    if run.attention in FLASH:
        fix = "'sdpa' takes torch's own flash kernel where a card does"
        yield f"attn_implementation={run.attention!r} is not traced: its kernels {fake}; {fix}"
    if run.quantization:
        why = f"bitsandbytes' kernels {fake}"
        yield f"quantized weights ({run.quantization}) are not traced: {why}; {INSTEAD}"
    if OPTIMIZERS[run.optimizer].paged:
        why = "bitsandbytes asks the driver for pages"
        yield f"the paged optimizer {run.optimizer!r} is not traced: {why}; {INSTEAD}"
