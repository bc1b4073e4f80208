"""The process of a traced script."""

from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import msgspec

from .isolation import isolate
from .recording import Failure, Recording, ScriptInput

PACKAGES = str(Path(__file__).parents[3])


def main(file: str) -> NoReturn:
    """Run the script of a plan; write its recording, or why there is none, and end the process.

    The process ends in the middle of the script, so that it saves and uploads nothing.
    """
    plan = msgspec.json.decode(Path(file).read_bytes(), type=ScriptInput)
    isolate(Path(file).parent, PACKAGES)
    os.dup2(2, 1)  # what the script prints goes to stderr: stdout has the answer alone

    def finish(outcome: Recording | Failure) -> NoReturn:
        kind = "recording" if isinstance(outcome, Recording) else "failure"
        Path(plan.result).write_bytes(msgspec.msgpack.encode((kind, outcome)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    finish(traced(plan, finish))


def traced(plan: ScriptInput, finish: Callable[[Recording], Any]) -> Recording | Failure:
    """The recording of a plan's script; `finish` is called in the middle of the script."""
    from .failures import failure_of
    from .program_child import run_program
    from .simulation import simulated

    with (
        patch.dict(os.environ, plan.environment),
        simulated(plan, finish) as simulation,
        _as_main(plan),
    ):
        try:
            run_program(plan.program, simulation) if plan.program else run_script(plan)
        except SystemExit as end:
            if end.code not in (None, 0):
                return failure_of(plan, end)
        except Exception as error:
            return failure_of(plan, error)
        return simulation.outcome()


def run_script(plan: ScriptInput) -> None:
    """Run the script as Python's own command line would."""
    if plan.module:
        runpy.run_module(plan.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(plan.target, run_name="__main__")


@contextmanager
def _as_main(plan: ScriptInput) -> Iterator[None]:
    """sys.argv and sys.path as the script expects them."""
    before, path = sys.argv, sys.path[:]
    sys.argv = [plan.target, *plan.arguments]
    folder = str(Path.cwd()) if plan.module else str(Path(plan.target).resolve().parent)
    sys.path[0:0] = [folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path
        gc.collect()
