"""A service under a mixture of requests for some minutes: its memory, its errors, its latencies.

    python -m benchmarks.soak --minutes 60 --rate 30

Starts the service on 127.0.0.1 and sends bodies that differ, so that few answers are remembered.
Prints a line each half minute: seconds, requests, memory of all its processes (Pss, which counts
shared pages once); at the end a summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import quantiles
from typing import Any

CLIENTS, EACH, STARTS_IN = 4, 30.0, 120.0  # threads; seconds between lines; to wait for it
MODELS = ("gpt2", "qwen2.5-0.5b", "llama3.2-1b", "qwen3-8b", "llama3.1-8b")
ENGINES = ("pytorch", "fsdp", "deepspeed")
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 590.06 MiB is free."
)
# An address, and of a hundred requests how many are its.
MIXTURE = {
    "/api/validate": 25,
    "/api/calculate?replay=false": 25,
    "/api/look": 20,
    "/api/infer": 10,
    "/api/check?gpu=4090": 8,
    "/api/diagnose": 6,
    "/api/calculate": 4,
    "/api/import": 2,
}


def body(address: str, draw: random.Random) -> dict[str, Any]:
    """A body for an address; one in twenty is refused."""
    model = {"name": draw.choice(MODELS) if draw.random() < 0.95 else "no-such-model"}
    hardware = {"gpu": draw.choice(("4090", "h100-80gb-sxm")), "num_gpus": draw.choice((1, 2, 8))}
    length = draw.randrange(128, 4096)
    serve = {"engine": "vllm", "max_seq_len": length}
    if address.startswith("/api/infer"):
        return {"model": model, "inference": serve, "hardware": {**hardware, "num_gpus": 1}}
    if address.startswith(("/api/check", "/api/import")):
        return {"text": f"vllm serve Qwen/Qwen3-8B --max-model-len {length}"}
    if address.startswith("/api/diagnose"):
        return {"text": MESSAGE.format(length)}
    if address == "/api/calculate":  # replayed, so small
        model, length = {"name": "gpt2"}, draw.randrange(64, 512)
    training = {"batch_size": draw.choice((1, 2, 4)), "seq_len": length}
    engine = {"type": draw.choice(ENGINES)}
    return {"model": model, "training": training, "engine": engine, "hardware": hardware}


def family(pid: int) -> Iterator[int]:
    """A process and those below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def memory_mib(pid: int) -> float:
    """Pss of a process and those below it."""
    kib = 0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


class Soak:
    """The requests so far: their statuses, and the seconds that each took."""

    def __init__(self, port: int, ends: float, rate: float) -> None:
        self.port, self.ends, self.pause = port, ends, CLIENTS / rate
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []

    def client(self, number: int) -> None:
        """One client after another request, until the time is over."""
        draw, place = random.Random(number), f"127.0.0.1:{self.port}"
        connection = HTTPConnection(place, timeout=120)
        while (begun := time.monotonic()) < self.ends:
            [address] = draw.choices(list(MIXTURE), list(MIXTURE.values()))
            try:
                connection.request("POST", address, json.dumps(body(address, draw)))
                reply = connection.getresponse()
                reply.read()
                self.statuses[str(reply.status)] += 1
            except (OSError, HTTPException) as error:
                self.statuses[type(error).__name__] += 1
                connection = HTTPConnection(place, timeout=120)
            took = time.monotonic() - begun
            self.seconds.append(took)
            time.sleep(max(0.0, self.pause - took))

    def run(self, pid: int) -> list[float]:
        """Send requests until the end; the memory at the start and after each half minute."""
        begun, memory = time.monotonic(), [memory_mib(pid)]
        print(f"{0:6} s {0:8,} requests {memory[0]:8.1f} MiB", flush=True)
        with ThreadPoolExecutor(CLIENTS) as clients:
            jobs = [clients.submit(self.client, number) for number in range(CLIENTS)]
            while time.monotonic() < self.ends:
                time.sleep(min(EACH, max(0.1, self.ends - time.monotonic())))
                memory.append(memory_mib(pid))
                now, sent = time.monotonic() - begun, len(self.seconds)
                print(f"{now:6.0f} s {sent:8,} requests {memory[-1]:8.1f} MiB", flush=True)
            for job in jobs:
                job.result()
        return memory

    def summary(self, minutes: float, memory: list[float]) -> dict[str, Any]:
        """What was sent and seen."""
        cuts = quantiles(self.seconds, n=100)
        return {
            "minutes": minutes,
            "requests": len(self.seconds),
            "statuses": dict(self.statuses),
            "milliseconds": {f"p{one}": round(1000 * cuts[one - 1]) for one in (50, 95, 99)},
            "pss_mib": [round(one, 1) for one in memory],
        }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def started(port: int, **settings: str) -> subprocess.Popen[bytes]:
    """The service, when it can calculate."""
    command = [sys.executable, "-m", "gpu_mem_calculator.cli.main", "serve", "--port", str(port)]
    env = {**os.environ, "GPU_MEM_CALC_LOG_LEVEL": "warning", **settings}
    service = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    ends = time.monotonic() + STARTS_IN
    while time.monotonic() < ends and service.poll() is None:
        time.sleep(0.5)
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return service
        except (OSError, HTTPException):
            continue
    service.kill()
    raise SystemExit("the service did not start")


def main() -> None:
    """Start the service, send requests, print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second, at most")
    given = parser.parse_args()
    port = free_port()
    service = started(port)
    try:
        soak = Soak(port, time.monotonic() + 60 * given.minutes, given.rate)
        memory = soak.run(service.pid)
        print(json.dumps(soak.summary(given.minutes, memory)))
    finally:
        service.terminate()
        service.wait(30)


if __name__ == "__main__":
    main()
