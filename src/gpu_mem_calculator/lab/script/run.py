"""Run a user's script on fake tensors in a process of its own, and trace what it allocated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...tools.read import read
from ...training.step.workspaces import run_cublas_bytes
from ..jobs.function import STAND_IN
from ..trace.card import Card
from ..trace.run import RunTrace, run_trace
from .launch import Launch
from .recording import Recording, ScriptInput, decoded

STEPS = 2  # the optimizer's states exist from the second on
SECONDS = 1800.0  # after which a script is ended
GRACE = 10.0  # seconds in which the supervisor ends what the script started
SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
CHILD = """
import sys
sys.path[0] = sys.argv.pop(1)  # where this package is; for `python -c`, the first is the folder
from gpu_mem_calculator.lab.script.child import main
del sys.path[0]
main(sys.argv[1])
"""
PACKAGES = str(Path(__file__).parents[3])


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
    timeout: float = SECONDS,
) -> tuple[RunTrace, Recording]:
    """The trace of a script's first steps, and its recording; after `timeout` seconds the script is
    ended (0: never).
    """
    resolved = resolve(read(script_run_file(launch, data)).file)
    recording = record_script(launch, resolved, steps, shapes or {}, timeout=timeout)
    resolved = resolve(read(script_run_file(launch, data, recording.engine)).file)
    notes = tuple(recording.notes)
    traced = run_trace(resolved, recording.stream, recording.makers, recording.kinds, notes)
    return traced, recording


def record_script(
    launch: Launch,
    resolved: ResolvedRun,
    steps: int,
    shapes: Mapping[str, int | str],
    program: str = "",
    timeout: float = SECONDS,
) -> Recording:
    """What a script, or a program in its place, allocates, recorded in another process."""
    with tempfile.TemporaryDirectory(prefix="gpu-mem-calc-") as folder:
        plan = plan_of(launch, resolved, steps, shapes, str(Path(folder) / "result"))
        file = Path(folder) / "plan.json"
        file.write_bytes(msgspec.json.encode(replace(plan, program=program)))
        code = run_supervised([sys.executable, "-c", CHILD, PACKAGES, str(file)], timeout)
        result = Path(plan.result)
        if code is None and not result.is_file():
            late = f"{launch.target} made no {steps or STEPS} steps within {timeout:g} seconds"
            raise InputError(f"{late}, and was ended; give it more by --timeout, 0 for no limit")
        if not result.is_file():
            raise InputError(f"{launch.target} {_end(code or 0)} before it made an optimizer step")
        outcome = decoded(result.read_bytes())
    if isinstance(outcome, Recording):
        return outcome
    if outcome.traceback:
        print(outcome.traceback, file=sys.stderr, flush=True)
    raise InputError(outcome.sentence)


def run_supervised(words: list[str], timeout: float) -> int | None:
    """Run a command in a session of its own; nothing that it starts outlives this call.

    Returns how it ended; None where it was ended after `timeout` seconds (0: never).
    """
    supervised = [sys.executable, "-I", "-S", SUPERVISOR, *words]
    with subprocess.Popen(supervised, start_new_session=True) as process:
        try:
            return process.wait(timeout or None)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_supervisor(process)


def _end_supervisor(process: subprocess.Popen[bytes]) -> None:
    """Let the supervisor end what is left; kill its session where it does not answer."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


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
        card=Card(
            name=hardware.title,
            memory_bytes=hardware.memory_bytes,
            compute_capability=run.compute_capability,
            multiprocessors=run.multiprocessors,
            count=launch.ranks_per_node,
        ),
        cublas_bytes=int(run_cublas_bytes(run)),
        shapes=dict(shapes),
        result=result,
    )
