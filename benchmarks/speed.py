"""How fast it is, as ratios to a reference measured in the same run.

- a cold `quick` as a multiple of starting bare Python, piped and on a terminal;
- estimates a second in one process, by the ledger alone and with the allocator replayed;
- peak memory of a cold `quick`.
"""

from __future__ import annotations

import os
import pty
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

COMMAND = [
    str(Path(sys.executable).with_name("gpu-mem-calc")),
    "quick",
    "7",
    "--gpus",
    "8",
    "--engine",
    "deepspeed",
]
ROUNDS = 15
# as installed: with compiled modules, whatever this shell says about writing them
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str], *, terminal: bool = False) -> float:
    """Wall time of one process."""
    if not terminal:
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=ENVIRONMENT)
        return time.perf_counter() - start
    ours, theirs = pty.openpty()
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    try:
        while os.read(ours, 65536):
            pass
    except OSError:
        pass
    process.wait()
    os.close(ours)
    return time.perf_counter() - start


def estimates_per_second(engine: str, count: int, *, replay: bool) -> float:
    """Estimates of one model at changing batch sizes."""
    from gpu_mem_calculator import estimate

    run: dict[str, dict[str, object]] = {
        "model": {"name": "llama2-7b"},
        "training": {"batch_size": 1, "seq_len": 4096},
        "engine": {"type": engine},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
    }
    estimate(run, replay=replay)
    start = time.perf_counter()
    for i in range(count):
        run["training"]["batch_size"] = 1 + i % 7
        estimate(run, replay=replay)
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    pairs: dict[str, list[float]] = {"piped": [], "terminal": []}
    for _ in range(ROUNDS):
        bare = seconds([sys.executable, "-c", "pass"])
        pairs["piped"].append(seconds(COMMAND) / bare)
        pairs["terminal"].append(seconds(COMMAND, terminal=True) / bare)
    for name, aim in (("piped", 8), ("terminal", 12)):
        print(f"cold quick, {name:9} {median(pairs[name]):6.1f} x bare Python   (aim: {aim})")
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"peak memory of quick  {child:6.1f} MiB             (aim: under 60)")
    for engine in ("pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"):
        ledger = estimates_per_second(engine, 300, replay=False)
        whole = estimates_per_second(engine, 7, replay=True)
        print(f"ledgers a second      {ledger:6.0f} {engine:12}   (aim: 1,000)")
        print(f"replayed a second     {whole:6.1f} {engine}")


if __name__ == "__main__":
    main()
