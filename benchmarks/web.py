"""The service under load, beside a bare Starlette route in the same run.

Two processes that answer, on this machine's cores, which the client shares. Every request is a
different run, so that nothing could be remembered. `--requests 100000` also shows memory.

python -m benchmarks.web [--requests N] [--rate N] [--seconds N]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .soak import free_port

BARE = """
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def validate(request):
    await request.body()
    return Response(b'{"status":"ok"}', media_type="application/json")
app = Starlette(routes=[Route("/api/validate", validate, methods=["POST"])])
"""
WORKERS, CONNECTIONS, TENTHS = 2, 16, 10
LENGTHS = (512, 1024, 2048, 4096)  # that people train with
ODD = range(129, 1024)  # and such that nobody asked for before
MODELS = ("llama2-7b", "llama3-8b", "qwen2.5-7b", "mistral-7b-v0.1", "qwen3-8b")
ENGINES = (
    {"type": "deepspeed", "zero_stage": 2},
    {"type": "fsdp"},
    {"type": "pytorch_ddp"},
    {"type": "deepspeed", "zero_stage": 3},
)


def bodies(lengths: Iterable[int]) -> Iterator[bytes]:
    """Runs, no two of them the same for a long time."""
    steps, batches = range(1, 1000), (1, 2, 4, 8)
    every = itertools.product(steps, lengths, batches, MODELS, ENGINES)
    for accumulated, length, batch, model, engine in itertools.cycle(every):
        training = {
            "batch_size": batch,
            "seq_len": length,
            "gradient_accumulation_steps": accumulated,
        }
        run = {
            "model": {"name": model},
            "engine": engine,
            "training": training,
            "hardware": {"num_gpus": 8},
        }
        yield json.dumps(run).encode()


def request(body: bytes) -> bytes:
    """A POST with its head."""
    head = (
        f"POST /api/validate HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> int:
    """The status of one answer, read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-len"))
    await reader.readexactly(int(length.split(b":")[1]))
    return int(head[9:12])


async def load(
    port: int, total: int, rate: float, runs: Iterator[bytes]
) -> tuple[list[float], float, int]:
    """Seconds of each request, of all of them, and how many were not answered with 200.

    A request is due at its place in a steady stream of `rate` a second (0: one after another), and
    its time runs from then: what waits for a busy client or server counts.
    """
    due, times = itertools.count(), []
    began = time.perf_counter() + 0.1
    bad = 0

    async def one() -> None:
        nonlocal bad
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (number := next(due)) < total:
            start = began + number / rate if rate else time.perf_counter()
            if (early := start - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            writer.write(request(next(runs)))
            bad += await answer(reader) != 200
            times.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return times, time.perf_counter() - began, bad


def start(command: list[str], port: int, folder: Path) -> subprocess.Popen[bytes]:
    """A server that answers."""
    environment = os.environ | {"GPU_MEM_CALC_LOG_LEVEL": "warning", "PYTHONPATH": str(folder)}
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    for _ in range(300):
        time.sleep(0.1)
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(4)  # the other process, and what warms up
                return server
    raise SystemExit("the server does not start")


def resident(server: subprocess.Popen[bytes]) -> int:
    """Bytes of every process of a server."""
    import psutil

    root = psutil.Process(server.pid)
    return sum(one.memory_info().rss for one in [root, *root.children(recursive=True)])


def quantile(times: list[float], share: float) -> float:
    """Milliseconds that so many stay within."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


def measured(
    name: str, command: list[str], port: int, asked: argparse.Namespace, folder: Path
) -> float:
    """Load a server, print what it did; requests a second when asked as fast as it can."""
    server = start(command, port, folder)
    most: list[float] = []
    usual = bodies(LENGTHS)
    seconds, memory = 0.0, []
    try:
        asyncio.run(load(port, 3000, 0, usual))  # what is remembered is there
        steady, _, bad = asyncio.run(load(port, int(asked.rate * asked.seconds), asked.rate, usual))
        for _ in range(TENTHS):
            times, took, worse = asyncio.run(load(port, asked.requests // TENTHS, 0, usual))
            most, seconds, bad = most + times, seconds + took, bad + worse
            memory.append(resident(server) // 2**20)
        odd, odd_seconds, _ = asyncio.run(load(port, 2000, 0, bodies(ODD)))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    rate = len(most) / seconds
    print(
        f"{name}\n"
        f"  {asked.rate:.0f} a second: p50 {statistics.median(steady) * 1000:.1f} ms, "
        f"p99 {quantile(steady, 0.99):.1f} ms\n"
        f"  flat out: {rate:.0f} a second, p99 {quantile(most, 0.99):.1f} ms; "
        f"with sequence lengths never seen before {len(odd) / odd_seconds:.0f}\n"
        f"  not answered with 200: {bad} of {len(steady) + len(most)}\n"
        f"  MiB of all processes after each tenth: {' '.join(map(str, memory))}"
    )
    return rate


def main() -> None:
    """Both servers, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "bare_route.py").write_text(BARE)
        bare_port, port = free_port(), free_port()
        bare = [
            sys.executable,
            "-m",
            "uvicorn",
            "bare_route:app",
            "--port",
            str(bare_port),
            "--workers",
            str(WORKERS),
            "--no-access-log",
            "--log-level",
            "warning",
        ]
        ours = [
            sys.executable,
            "-m",
            "gpu_mem_calculator",
            "serve",
            "--port",
            str(port),
            "--workers",
            str(WORKERS),
        ]
        reference = measured("a bare Starlette route", bare, bare_port, asked, folder)
        rate = measured("/api/validate", ours, port, asked, folder)
    print(f"/api/validate does {rate / reference:.2f} of what a bare route does")


if __name__ == "__main__":
    main()
