"""How long a log takes to diagnose, of what is in it.

    python -m benchmarks.logs [megabytes] [kind ...]

The kinds are dense: every line says something, or none can be told from the next.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

MEGABYTES, MOST_SECONDS = 50, 5
OOM = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a"
    " total capacity of 23.52 GiB of which 1.05 GiB is free. Process 1 has 22.4 GiB memory in use."
    " Of the allocated memory 21.77 GiB is allocated by PyTorch, and 204.11 MiB is reserved by"
    " PyTorch but unallocated.\n"
)
LINES = {
    "memory": OOM,
    "traceback": '  File "/x/site-packages/torch/nn/modules/module.py", line 1501, in _call_impl\n'
    "    return forward_call(*args, **kwargs)\n",
    "vllm": "INFO 08-20 09:12:47 [gpu_worker.py:276] Available KV cache memory: 55.12 GiB\n"
    "INFO 08-20 09:12:47 [kv_cache_utils.py:849] GPU KV cache size: 1,031,984 tokens\n",
    "nvidia-smi": "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |       0 |\n"
    "| N/A   32C    P0      62W / 400W |  70000MiB / 81920MiB |      0%      Default |\n",
    "bars": "\x1b[32m 10%|█         | 100/1000 [01:00<09:00,  1.00it/s]\x1b[0m\r",
    "one line": OOM.replace("\n", " "),
    "spaces": " ",
}


def _random_text(size: int) -> bytes:
    return "".join(random.Random(0).choices("abcde 0123456789.:GiBM\n", k=size)).encode()


RANDOM: Mapping[str, Callable[[int], bytes]] = {
    "random bytes": lambda size: random.Random(0).randbytes(size),
    "random text": _random_text,
}


def _log(name: str, size: int) -> bytes:
    """A log of a kind."""
    if name in RANDOM:
        return RANDOM[name](size)
    line = LINES[name].encode()
    return (line * (size // len(line) + 1))[:size]


def main() -> int:
    """CPU seconds of each kind; an error where one takes too long."""
    size = int(float(sys.argv[1]) * 2**20) if len(sys.argv) > 1 else MEGABYTES * 2**20
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[2:] or (*LINES, *RANDOM):
            path = Path(folder) / "log.txt"
            path.write_bytes(_log(name, size))
            before = getrusage(RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "gpu_mem_calculator", "diagnose", str(path)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            after = getrusage(RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            slow |= seconds > MOST_SECONDS
            print(f"{name:14} {seconds:5.1f} s of CPU")
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
