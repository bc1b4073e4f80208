"""Starts train.py without importing torch and DeepSpeed anew each time, which takes most of a run.

It imports them, then reads one job per line: it forks one process per rank with the variables that
`torchrun` sets, and answers when all have ended.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LIMIT = 120.0  # seconds of a job


def work(job: dict[str, Any], rank: int, port: int) -> int:
    """One rank of a job: train.py as a program of its own."""
    import train

    out = os.open(f"{job['out']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job["ranks"]),
        LOCAL_WORLD_SIZE=str(job["ranks"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.argv = ["train.py", *job["arguments"]]
    try:
        return train.main()
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run(job: dict[str, Any]) -> list[int]:
    """The exit status of every rank. As a launcher does, one that fails ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children: dict[int, int] = {}
    for rank in range(job["ranks"]):
        child = os.fork()
        if child == 0:
            os._exit(work(job, rank, port))
        children[child] = rank
    codes, end = [-1] * job["ranks"], time.monotonic() + LIMIT
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > end or (child and status):
            for one in children:
                os.kill(one, 9)
            end = float("inf")
        if not child:
            time.sleep(0.02)
    return codes


def main() -> None:
    """Import what takes long, then work off the jobs."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gptlite"))
    import deepspeed.runtime.zero.muon.muon_optimizer  # compiles as it is imported
    import text_task
    import train

    assert deepspeed.ops.__compatible_ops__  # asks for compilers as it is read
    assert train
    assert text_task
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
