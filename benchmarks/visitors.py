"""What visitors of one service wait for: many at once, beside a plan, and after Cancel.

    python -m benchmarks.visitors [--visitors N] [--rounds N]

Starts the service on 127.0.0.1 with one process for plans. Every run that is asked for differs, so
nothing is remembered. Prints the milliseconds of a verdict where bounds decide (`/api/look`), with
one visitor, with all of them at once, and while a large plan is searched; then how long after
Cancel the plan of another visitor begins.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import httpx

from .soak import free_port, started
from .web import MODELS

PLAN = {"model": "llama3.1-70b", "gpus": 64, "gpu": "h100", "seq_len": 8192, "global_batch": 1024}
SMALL = {"model": "gpt2", "gpus": 2, "gpu": "h200", "global_batch": 4, "engine": "pytorch_ddp"}
WAITING = "waiting for a free process"
STREAM = {"accept": "text/event-stream"}
RUNS = itertools.count(129)


def ask(client: httpx.Client) -> float:
    """Seconds until the verdict of a run that nobody asked for before; a 7B or 8B model trained
    whole on one GPU of 80 GB fits by no bound.
    """
    number = next(RUNS)
    run = {
        "model": {"name": MODELS[number % len(MODELS)]},
        "training": {"batch_size": 1, "seq_len": number},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 1},
    }
    begun = time.perf_counter()
    reply = client.post("/api/look", json=run)
    took = time.perf_counter() - begun
    assert reply.status_code == 200, reply.text
    assert reply.json()["result"]["verdict"] == "does_not_fit", reply.text
    return took


def at_once(clients: list[httpx.Client]) -> list[float]:
    """One verdict for each visitor, all asked for together."""
    with ThreadPoolExecutor(len(clients)) as together:
        return list(together.map(ask, clients))


@contextmanager
def searching(client: httpx.Client, question: dict[str, object]) -> Iterator[None]:
    """While a plan is searched; at the end its visitor leaves."""
    with client.stream("POST", "/api/plan", json=question, headers=STREAM) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: ") and WAITING not in line:
                break
        yield


def shown(name: str, seconds: list[float]) -> None:
    """A line: the median, the 95th percentile and the worst."""
    ordered = sorted(1000 * one for one in seconds)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    print(f"{name:34} p50 {median(ordered):6.0f}  p95 {p95:6.0f}  worst {ordered[-1]:6.0f}")


def main() -> None:
    """Ask, and print what was waited for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--visitors", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    port = free_port()
    service = started(port, GPU_MEM_CALC_PLAN_PROCESSES="1")
    address = f"http://127.0.0.1:{port}"
    clients = [httpx.Client(base_url=address, timeout=120) for _ in range(given.visitors + 2)]
    one, other, *visitors = clients
    try:
        at_once(visitors)  # connections are open
        shown("one visitor", [ask(one) for _ in range(50)])
        rounds = [seconds for _ in range(given.rounds) for seconds in at_once(visitors)]
        shown(f"{given.visitors} visitors at once", rounds)
        left, beside = [], []
        for number in range(given.rounds):
            with searching(other, {**PLAN, "global_batch": 1024 + 64 * number}):
                beside += [ask(one) for _ in range(20)]
            begun = time.perf_counter()
            with searching(one, {**SMALL, "seq_len": 512 + number}):
                left.append(time.perf_counter() - begun)
        shown("beside a plan", beside)
        shown("after Cancel, until the next plan", left)
    finally:
        for client in clients:
            client.close()
        service.terminate()
        service.wait(30)


if __name__ == "__main__":
    main()
