"""What a run says of itself: a bar or lines on the way, and a report of all ranks at its end."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator
from torch import Tensor, distributed
from tqdm import tqdm

GIB = 2**30


class Progress:
    """Counts steps, samples and memory. A bar on a terminal, else a line per `--log_every`."""

    def __init__(self, options: Namespace, first: int, samples: int) -> None:
        self.options, self.first, self.samples = options, first, samples
        self.losses: dict[int, float] = {}
        self.allocated: list[int] = []
        self.times: list[float] = []
        terminal = options.rank == 0 and sys.stderr.isatty()
        self.bar = tqdm(total=options.steps, initial=first, disable=not terminal, unit="step")
        get_accelerator().reset_peak_memory_stats()
        self._clock()

    def _clock(self) -> None:
        get_accelerator().synchronize()
        self.times.append(time.perf_counter())

    def step(self, number: int, loss: Tensor) -> None:
        """Step `number` is done. The loss is read, and with it the device waited for, when it is
        shown and twice at the beginning: the first step is no measure of speed."""
        self.allocated.append(get_accelerator().memory_allocated())
        self.bar.update()
        done = number + 1
        if number == self.first:
            self._clock()
        shown = done % self.options.log_every == 0 or done == self.options.steps
        if shown or number == self.first:
            self.losses[done] = mean(loss)
            self.bar.set_postfix(loss=f"{self.losses[done]:.3f}")
        if shown and self.options.rank == 0 and self.bar.disable:
            print(f"step {done}/{self.options.steps}  loss {self.losses[done]:.4f}", flush=True)

    def report(self, parameters: int, **more: Any) -> dict[str, Any]:
        """What was measured, of all ranks; every rank has to ask."""
        self._clock()
        self.bar.close()
        start = 1 if len(self.allocated) > 1 else 0
        steps, seconds = len(self.allocated) - start, self.times[-1] - self.times[start]
        mine = {
            "rank": self.options.rank,
            "memory_average": round(sum(self.allocated) / len(self.allocated)),
            "memory_max": get_accelerator().max_memory_allocated(),
        }
        ranks: list[Any] = [None] * self.options.ranks
        distributed.all_gather_object(ranks, mine)
        return {
            "task": self.options.task,
            "config": self.options.deepspeed_config,
            "device": get_accelerator().device_name(),
            "parameters": parameters,
            "steps": [self.first, self.options.steps],
            "losses": self.losses,
            "samples_per_second": steps * self.samples / seconds,
            "ranks": ranks,
            **more,
        }


def mean(loss: Tensor) -> float:
    """A loss over all ranks."""
    found = loss.detach().float().clone()
    distributed.all_reduce(found)
    return found.item() / distributed.get_world_size()


def show(report: dict[str, Any]) -> str:
    """The report in a few lines."""
    losses = list(report["losses"].values())
    kind = "process" if report["device"] == "cpu" else "allocated"
    lines = [
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in steps {report['steps'][0] + 1} to "
        f"{report['steps'][1]}; {report['samples_per_second']:.2f} samples/s"
    ]
    if report.get("validation_loss") is not None:
        lines.append(f"validation loss {report['validation_loss']:.4f}")
    lines += [
        f"rank {one['rank']}: {kind} memory {one['memory_average'] / GIB:.3f} GiB on average after "
        f"a step, {one['memory_max'] / GIB:.3f} GiB at most"
        for one in report["ranks"]
    ]
    return "\n".join(lines)


def write(report: dict[str, Any], path: str) -> None:
    """The report as JSON."""
    Path(path).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
