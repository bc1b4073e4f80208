"""Ranks that share a GPU: what bench_ranks.py puts around train.py, on the CPU."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from . import GPTLITE
from .conftest import ENVIRONMENT, SIZES

# In a process of its own: DeepSpeed asks for compilers as it is imported.
PROGRAM = """
import sys
import time
import bench_ranks
import torch
import train
from pathlib import Path
from torch._subclasses.fake_tensor import FakeTensorMode

class History:
    restarts = 0
    def restart(self):
        self.restarts += 1
        self.began = time.monotonic()

assert bench_ranks.average_file(["--average", "a", "--steps", "2"]) == (Path("a"), ["--steps", "2"])
assert bench_ranks.average_file(["--steps", "2"]) == (None, ["--steps", "2"])
with FakeTensorMode():
    assert bench_ranks.needs_host(torch.empty(1, device="cuda"))
assert not bench_ranks.needs_host(torch.empty(1)) and not bench_ranks.needs_host(3)
bench_ranks.join()
assert torch.distributed.get_backend() == "gloo"
assert bench_ranks.BACKEND._needs_cpu_staging is bench_ranks.needs_host
sent = []
bench_ranks.BACKEND._needs_cpu_staging = lambda value: bool(
    isinstance(value, torch.Tensor) and (sent.append(value) or True))
history = History()
train.step_of = bench_ranks.averaged(train.step_of, history)
assert train.main() == 0
assert history.restarts == 2 and history.ended > history.began
assert sent, "nothing that DeepSpeed sends passes through here any more"
"""


@pytest.mark.proof
def test_a_pipeline_runs_through_the_host() -> None:
    """gloo's group is there before DeepSpeed's; every step has a history of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [
        "--deepspeed_config",
        "configs/pipeline_fp32.json",
        "--pipeline",
        *SIZES,
        "--steps",
        "2",
        "--torch_adam",
        "--no_sample",
    ]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=GPTLITE,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={
                **ENVIRONMENT,
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "PYTHONPATH": str(GPTLITE),
            },
        )
        for rank in "01"
    ]
    try:
        said = [one.communicate(timeout=100)[1] for one in ranks]
    finally:
        for one in ranks:
            with one:
                one.kill()
    assert [one.returncode for one in ranks] == [0, 0], said[0][-2000:]
