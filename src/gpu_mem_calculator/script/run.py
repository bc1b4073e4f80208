"""Run a user's script on fake tensors in a process of its own, and trace what it allocated."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ..core.errors import InputError
from ..core.resolve import resolve
from ..core.resolved_run import ResolvedRun
from ..core.runfile import read
from ..jobs.function import STAND_IN
from ..replay.stream import AllocationStream
from ..step.workspaces import run_cublas_bytes
from ..trace.run import RunTrace, run_trace
from .launch import Launch
from .recording import Failure, Recording, ScriptInput

STEPS = 2  # the optimizer's states exist from the second on
CHILD = """
import sys
sys.path[0] = sys.argv.pop(1)  # where this package is; for `python -c`, the first is the folder
from gpu_mem_calculator.script.child import main
del sys.path[0]
main(sys.argv[1])
"""
PACKAGES = str(Path(__file__).parents[2])


def script_run_file(launch: Launch, data: Mapping[str, Any], engine: str = "") -> dict[str, Any]:
    """A run file for the hardware and the engine of a script; its model is never shown."""
    hardware = dict(data.get("hardware") or {})
    hardware["num_gpus"] = launch.ranks
    if launch.nodes > 1:
        hardware |= {"num_nodes": launch.nodes, "gpus_per_node": launch.ranks_per_node}
    file = {**data, "model": dict(STAND_IN), "hardware": hardware}
    return {**file, "engine": {"type": engine}} if engine else file


def trace_script(
    launch: Launch,
    data: Mapping[str, Any],
    *,
    steps: int = STEPS,
    shapes: Mapping[str, int | str] | None = None,
) -> tuple[RunTrace, Recording]:
    """The trace of a script's first steps, and its recording."""
    resolved = resolve(read(script_run_file(launch, data)))
    recording = record_script(launch, resolved, steps, shapes or {})
    resolved = resolve(read(script_run_file(launch, data, recording.engine)))
    notes = tuple(recording.notes)
    stream = stream_of(recording)
    traced = run_trace(resolved, stream, recording.makers, recording.kinds, notes)
    return traced, recording


def stream_of(recording: Recording) -> AllocationStream:
    """The allocations of a recording."""
    return AllocationStream(
        sizes=recording.sizes,
        events=recording.events,
        streams=recording.streams,
        marks=recording.marks,
        empties=recording.empties,
    )


def record_script(
    launch: Launch,
    resolved: ResolvedRun,
    steps: int,
    shapes: Mapping[str, int | str],
    program: str = "",
) -> Recording:
    """What a script, or a program in its place, allocates, recorded in another process."""
    with tempfile.TemporaryDirectory(prefix="gpu-mem-calc-") as folder:
        plan = plan_of(launch, resolved, steps, shapes, str(Path(folder) / "result"))
        file = Path(folder) / "plan.json"
        file.write_bytes(msgspec.json.encode(replace(plan, program=program)))
        code = _run([sys.executable, "-c", CHILD, PACKAGES, str(file)])
        result = Path(plan.result)
        if not result.is_file():
            raise InputError(f"{launch.target} {_end(code)} before it made an optimizer step")
        kind, outcome = msgspec.msgpack.decode(result.read_bytes())
    if kind == "recording":
        return msgspec.convert(outcome, Recording)
    failure = msgspec.convert(outcome, Failure)
    if failure.traceback:
        print(failure.traceback, file=sys.stderr, flush=True)
    raise InputError(failure.sentence)


def _run(words: list[str]) -> int:
    with subprocess.Popen(words) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.kill()
            raise


def _end(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended its process with exit code {code}"


def plan_of(
    launch: Launch, resolved: ResolvedRun, steps: int, shapes: Mapping[str, int | str], result: str
) -> ScriptInput:
    """The plan for the script's process."""
    run, hardware = resolved.run, resolved.hardware
    return ScriptInput(
        target=launch.target,
        module=launch.module,
        arguments=list(launch.arguments),
        environment=dict(launch.environment),
        ranks=launch.ranks,
        steps=steps,
        card={
            "name": hardware.title,
            "memory_bytes": hardware.memory_bytes,
            "compute_capability": run.compute_capability,
            "multiprocessors": run.multiprocessors,
            "count": launch.ranks_per_node,
        },
        cublas_bytes=int(run_cublas_bytes(run)),
        shapes=dict(shapes),
        result=result,
    )
