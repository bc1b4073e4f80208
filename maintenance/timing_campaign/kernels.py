"""Times kernels on the GPU.

usage: python -m maintenance.timing_campaign.kernels OUT [--only matmul,attention] [--small]

Each group runs in a process of its own, so that one that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from gpu_mem_calculator.lab.measure.card import card_state, host_state
from gpu_mem_calculator.lab.measure.child_process import Tell, run_in_child

GROUPS = ("matmul", "attention", "elementwise", "optimizers", "transfers", "host_ops", "quantized")
LONGEST = 150.0  # seconds of a group

Measured = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]


def run_group(name: str, small: bool, tell: Tell) -> int:
    """Every measurement of a group: a point, and what was measured there or why not."""
    torch = import_module("torch")
    module = import_module(f".{name}", __package__)
    count = 0
    for point, measure in module.points(small):
        try:
            tell({"group": name, **point, **measure()})
        except Exception as error:
            tell({"group": name, **point, "failed": f"{type(error).__name__}: {str(error)[:200]}"})
            torch.cuda.empty_cache()
        count += 1
    tell({"group": name, "environment": {**host_state(), **card_state(torch.cuda)}})
    return count


def main() -> None:
    """Run the groups one after another; OUT gets a JSON line for each point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    with args.out.open("a") as file:

        def write(row: Any) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        for name in args.only.split(","):
            begin = time.monotonic()
            outcome = run_in_child(
                lambda group, tell: run_group(group, args.small, tell), name, LONGEST, write
            )
            seconds = time.monotonic() - begin
            print(f"{name}: {outcome.value} points, {seconds:.0f} s {outcome.error}", flush=True)
            if outcome.error:
                print(outcome.log[-800:], flush=True)


if __name__ == "__main__":
    main()
