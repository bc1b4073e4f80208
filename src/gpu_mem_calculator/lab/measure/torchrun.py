"""torchrun with the same options, but bad input is reported once, with exit code 2.

`python -m gpu_mem_calculator.lab.measure.torchrun --nproc-per-node 8 -m gpu_mem_calculator measure
…`:
with plain torchrun every rank would print the problem, torchrun a traceback, and exit with 1.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError, print_to_stderr
from .card import NO_TORCH
from .child_process import end_with_parent

STARTED_HERE = "GPU_MEM_CALC_TORCHRUN"  # set in the environment of ranks that this module starts
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # the file in which torchrun looks for a rank's error
ELASTIC = "torch.distributed.elastic.multiprocessing"


def main(words: Sequence[str] | None = None) -> int:
    """Run the ranks of this node; returns the exit code of the one that failed first, else 0."""
    if find_spec("torch") is None:
        print_to_stderr(NO_TORCH)
        return 2
    run = import_module("torch.distributed.run")
    failed = import_module(f"{ELASTIC}.errors").ChildFailedError
    network = import_module("torch.distributed").DistError  # the other nodes cannot be reached
    # `report_failure` replaces its message
    logging.getLogger(f"{ELASTIC}.api").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, which warns of it
    os.environ[STARTED_HERE] = "1"
    try:
        run.run(run.parse_args(words))
    except failed as error:
        return report_failure(error.failures)
    except network as error:
        reason = str(error).splitlines()[0]
        print_to_stderr(f"the nodes did not find each other: {reason}")
        return 1
    return 0


def report_failure(failures: Mapping[int, Any]) -> int:
    """Print which rank failed first and how; returns its exit code.

    torchrun ends the other ranks with SIGTERM, so those are not taken for the first.
    """

    def order(rank: int) -> tuple[Any, ...]:
        one = failures[rank]
        return not problems_of(one), one.exitcode == -signal.SIGTERM, one.timestamp, rank

    rank = min(failures, key=order)
    failure = failures[rank]
    problems = problems_of(failure)
    if problems:
        print_to_stderr(*problems)
        return 2
    code: int = failure.exitcode
    if code < 0:
        print_to_stderr(f"rank {rank} was ended by {failure.signal_name()}")
        return 128 - code
    print_to_stderr(f"rank {rank} ended with exit code {code}")
    return code


def problems_of(failure: Any) -> list[str]:
    """The problems that a rank left with `leave_problems`."""
    message = failure.error_file_data["message"]
    problems = message.get("problems", []) if isinstance(message, dict) else []
    return [str(problem) for problem in problems]


def end_with_torchrun() -> None:
    """Make this rank end with the torchrun that this module started, even where that is killed."""
    if STARTED_HERE in os.environ:
        end_with_parent()


def leave_problems(problem: InputError) -> bool:
    """Write a rank's problems for `main` to print; False where plain torchrun started it."""
    path = os.environ.get(ERROR_FILE)
    if STARTED_HERE not in os.environ or not path:
        return False
    message = {
        "message": "; ".join(problem.problems),
        "problems": list(problem.problems),
        "extraInfo": {"timestamp": str(int(time.time()))},
    }
    Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
