"""The benchmark: each configuration estimated, traced and measured, and the largest model in it.

    python bench.py predict FILE          estimates and traces; needs no GPU
    python bench.py measure FILE RESULTS  the same on a GPU, and whether the largest models fit

One GPU plays rank 0 of 8. The largest model is looked for on a ladder: as many layers as heads of
64, so that rung 12 is GPT-3 Small. It is predicted first; then it must train, and the next rung
must run out of memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import bench_model
from msgspec import to_builtins
from msgspec.structs import replace

from gpu_mem_calculator.backtest.predict import outside_bytes
from gpu_mem_calculator.core.calculator import full_estimate
from gpu_mem_calculator.core.replayed import survives
from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.resolved import Resolved
from gpu_mem_calculator.core.runfile import read as read_run
from gpu_mem_calculator.formats.deepspeed_reader import read
from gpu_mem_calculator.jobs.function import run_without_model
from gpu_mem_calculator.memory.record import Record, arithmetic

CONFIGS = Path(__file__).parent / "configs"
RANKS, CARD = 8, "h200"
SMALL, MOST = 12, 96  # rungs: GPT-3 Small, and where the search ends
BATCHES = (1, 8)  # samples of a rank, for the speed
CONFIGURATIONS = (
    "ddp_fp32", "zero1_fp32", "zero2_fp32", "zero3_fp32", "zero3_offload_fp32", "ddp_bf16",
    "zero1_fp16", "zero2_bf16", "zero2_offload_bf16", "zero3_bf16", "zero3_bf16_checkpoint",
)  # fmt: skip
CHECKPOINTS = ("activation_checkpointing", "partition_activations")


def run_file(name: str) -> dict[str, Any]:
    """A configuration as a run of 8 ranks."""
    found = read(CONFIGS / f"{name}.json", num_gpus=RANKS)
    sections = ("training", "parallelism", "engine", "hardware")
    data: dict[str, Any] = {key: dict(found[key]) for key in sections}
    del data["training"]["batch_size"]  # the module's own
    data["hardware"]["gpu"] = CARD
    return data


def without_checkpoints(data: dict[str, Any]) -> dict[str, Any]:
    """The run as the module sees it: whether its blocks run twice is its own business."""
    keep = {key: {k: v for k, v in section.items() if k not in CHECKPOINTS}
            for key, section in data.items()}  # fmt: skip
    return keep


def module_run(data: dict[str, Any]) -> Resolved:
    """The run without a model."""
    given, _ = run_without_model(without_checkpoints(data))
    return resolve(read_run(given))


def record_of(data: dict[str, Any], number: int, batch_size: int = 1) -> Record:
    """The record of a rung. Equal blocks do the same: two are run, and stand for all."""
    resolved = module_run(data)
    run = resolved.run
    how = arithmetic(resolved.engine.name, run.precision, run.options, run.autocast)
    return deep(two_blocks(how, number, batch_size, json.dumps(data)), number)


@cache
def _two_blocks(how: str, number: int, batch_size: int) -> dict[str, Record]:
    return {}


def two_blocks(how: str, number: int, batch_size: int, data: str) -> Record:
    """The record of a rung's first two blocks, made once for each arithmetic."""
    from gpu_mem_calculator.trace.record import record

    known = _two_blocks(how, number, batch_size)
    if not known:
        build = partial(bench_model.plain, number=number, n_layer=2, batch_size=batch_size)
        known[""] = record(build, module_run(json.loads(data)), f"GPT-lite, rung {number}")
    return known[""]


def deep(found: Record, layers: int) -> Record:
    """The same module with more blocks like its last."""
    first, last = found.order
    own = [(name.removeprefix("blocks.1."), *rest) for name, *rest in found.buffers
           if name.startswith("blocks.1.")]  # fmt: skip
    masks = tuple((f"blocks.{n}.{name}", *rest) for n in range(2, layers) for name, *rest in own)
    return replace(found, order=(first, *[last] * (layers - 1)), buffers=(*found.buffers, *masks))


def with_record(data: dict[str, Any], found: Record) -> dict[str, Any]:
    """A run of a recorded module."""
    return {**data, "model": {"recorded": to_builtins(found)}}


def fits(data: dict[str, Any], number: int) -> bool:
    """Whether a rung trains on the card, as one rank without NCCL."""
    resolved = resolve(read_run(with_record(data, record_of(data, number))))
    room = resolved.hardware.memory_bytes - outside_bytes(resolved.outside_torch, "fake")
    if int(resolved.engine.ledger(resolved.run).peak()) > room:
        return False
    return survives(resolved, 0, room)


def largest(data: dict[str, Any]) -> int:
    """The highest rung that fits."""
    low, high = SMALL, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(data, middle) else (low, middle)
    return low


def predicted(name: str) -> dict[str, Any]:
    """Everything that is said of a configuration before it runs."""
    from gpu_mem_calculator.trace.run import trace

    data = run_file(name)
    result = full_estimate(with_record(data, record_of(data, SMALL))).result
    maker = bench_model.checkpointed if name.endswith("_checkpoint") else bench_model.plain
    given, _ = run_without_model(without_checkpoints(data))
    traced = trace(given, build=maker)
    keys = ("allocated_bytes", "startup_bytes", "reserved_bytes", "needs_bytes")
    return {
        "configuration": name,
        "estimated": {key: getattr(result, key) for key in keys},
        "traced": {key: getattr(traced, key) for key in keys},
        "largest": largest(data),
    }  # fmt: skip


def cases(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What to measure: each configuration, its speed, its largest model and the next one."""
    for row in rows:
        name = row["configuration"]
        maker = "checkpointed" if name.endswith("_checkpoint") else "plain"
        rungs = [(SMALL, batch, 8) for batch in BATCHES]
        rungs += [(row["largest"] + more, 1, 2) for more in (0, 1)]
        for number, batch, steps in rungs:
            yield {
                "id": f"{name}-{number}-b{batch}", "group": name, "steps": steps,
                "function": f"bench_model:{maker}", "timeout": 150,
                "with": {"number": number, "batch_size": batch},
                "config": without_checkpoints(run_file(name)),
            }  # fmt: skip


def write_rows(path: str, rows: Iterator[dict[str, Any]]) -> None:
    """One JSON object a line, each as soon as it is there."""
    with Path(path).open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of such a file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def predict(path: str) -> None:
    """Write what is predicted."""
    write_rows(path, map(predicted, CONFIGURATIONS))


def plan(path: str, out: str) -> None:
    """Write the cases for `gpu-mem-calc measure --cases`."""
    write_rows(out, cases(read_rows(path)))


COMMANDS: dict[str, Callable[..., None]] = {"predict": predict, "plan": plan}


if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
