"""torchrun with its own options, but a rank that refuses its input says so once, and ends with 2.

`python -m gpu_mem_calculator.measure.torchrun --nproc-per-node 8 -m gpu_mem_calculator measure …`:
torchrun itself would let every rank say the same, print a traceback of its own and end with 1.
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

from ..core.errors import InputError, tell
from .card import NO_TORCH
from .child_process import end_with_parent

STARTED_HERE = "GPU_MEM_CALC_TORCHRUN"  # set for ranks that were started from here
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for what a rank died of
ELASTIC = "torch.distributed.elastic.multiprocessing"


def main(words: Sequence[str] | None = None) -> int:
    """Run the ranks of this node; the exit code of the one that failed first, else 0."""
    if find_spec("torch") is None:
        tell(NO_TORCH)
        return 2
    run = import_module("torch.distributed.run")
    failed = import_module(f"{ELASTIC}.errors").ChildFailedError
    network = import_module("torch.distributed").DistError  # the others cannot be reached
    logging.getLogger(f"{ELASTIC}.api").setLevel(logging.CRITICAL)  # what follows says it better
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, which warns of it
    os.environ[STARTED_HERE] = "1"
    try:
        run.run(run.parse_args(words))
    except failed as error:
        return report_failure(error.failures)
    except network as error:
        reason = str(error).splitlines()[0]
        tell(f"the nodes did not find each other: {reason}")
        return 1
    return 0


def report_failure(failures: Mapping[int, Any]) -> int:
    """Say which rank failed first and how; torchrun ends the others by a signal of its own."""
    first = sorted(failures.items(), key=lambda one: (
        not problems_of(one[1]), one[1].exitcode == -signal.SIGTERM, one[1].timestamp, one[0]
    ))  # fmt: skip
    rank, failure = first[0]
    problems = problems_of(failure)
    if problems:
        tell(*problems)
        return 2
    code: int = failure.exitcode
    if code < 0:
        tell(f"rank {rank} was ended by {failure.signal_name()}")
        return 128 - code
    tell(f"rank {rank} ended with exit code {code}")
    return code


def problems_of(failure: Any) -> list[str]:
    """What a rank told by `leave_problems`."""
    message = failure.error_file_data["message"]
    found = message.get("problems", []) if isinstance(message, dict) else []
    return [str(problem) for problem in found]


def end_with_torchrun() -> None:
    """A rank ends with the torchrun that started it from here, even one that is killed."""
    if STARTED_HERE in os.environ:
        end_with_parent()


def leave_problems(problem: InputError) -> bool:
    """Leave the problems of a rank for `main` to say; False where torchrun was started plainly."""
    path = os.environ.get(ERROR_FILE)
    if STARTED_HERE not in os.environ or not path:
        return False
    told = {"message": "; ".join(problem.problems), "problems": list(problem.problems),
            "extraInfo": {"timestamp": str(int(time.time()))}}  # fmt: skip
    Path(path).write_text(json.dumps({"message": told}), encoding="utf-8")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
