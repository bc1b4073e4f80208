"""train.py as several ranks that share one GPU, which NCCL does not do and gloo does.

    torchrun --nproc-per-node 2 bench_ranks.py --average averages.jsonl \
        --deepspeed_config configs/pipeline_fp32.json --pipeline --report report.json

Everything that ranks say to each other goes through the host's memory, so what each rank
allocates on the GPU is what it would on a GPU of its own; only the speed is not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import train
from deepspeed.accelerator import get_accelerator
from torch import Tensor, distributed

from gpu_mem_calculator.lab.measure.probe import AllocationHistory

BACKEND: Any = import_module("deepspeed.comm.torch")


def main() -> int:
    """train.py, with the ranks of this node on its first GPU."""
    file, sys.argv[1:] = average_file(sys.argv[1:])
    join()
    rank, history = distributed.get_rank(), None
    if file is not None:
        import torch

        history = AllocationHistory(torch.cuda)
        train.step_of = averaged(train.step_of, history)
    code = train.main()
    if history is not None and code == 0:
        row = {"rank": rank, "average_bytes": history.average_bytes(history.ended)}
        with file.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
    return code


def average_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """The file of --average, which is ours, and the words that are train.py's."""
    if words[:1] != ["--average"]:
        return None, words
    if len(words) < 2:
        raise SystemExit("--average needs a file")
    return Path(words[1]), words[2:]


def join() -> None:
    """Meet the other ranks on the host.

    Before DeepSpeed does: it would bind the group to a GPU and split it from there, which gloo
    cannot. DeepSpeed copies to the host what gloo cannot send; it knows that of Apple's GPUs.
    """
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")  # each believes to be alone here
    distributed.init_process_group("gloo")
    BACKEND._needs_cpu_staging = needs_host


def needs_host(value: Any) -> bool:
    """Whether it is a tensor that gloo cannot send."""
    return isinstance(value, Tensor) and value.device.type == "cuda"


def averaged(step_of: Callable[[Any], Any], history: Any) -> Callable[[Any], Any]:
    """Steps that begin a history of their own; that of the last one is left."""

    def of(engine: Any) -> Callable[[Iterator[Any]], Tensor]:
        step = step_of(engine)

        def one(data: Iterator[Any]) -> Tensor:
            get_accelerator().synchronize()
            history.restart()
            loss = step(data)
            get_accelerator().synchronize()
            history.ended = time.monotonic()
            return loss

        return one

    return of


if __name__ == "__main__":
    sys.exit(main())
