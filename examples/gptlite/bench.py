"""The benchmark: each configuration estimated, traced and measured, and the largest model in it.

    python bench.py predict FOLDER    estimates and traces; needs no GPU
    python bench.py measure FOLDER    the same on a GPU, and whether the largest models fit
    python bench.py records FOLDER    what backtest needs to predict the measured rows without torch

One GPU plays rank 0 of 8; a pipeline's ranks share it. The largest model is looked for on a ladder:
as many layers as heads of 64, so that rung 12 is GPT-3 Small. It is predicted first; then it must
train, and the next rung must run out of memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bench_model
from msgspec import to_builtins
from msgspec.json import encode
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.stage_replay import replay_stage, taken_under
from gpu_mem_calculator.lab.backtest.predict import outside_bytes
from gpu_mem_calculator.lab.jobs.function import run_without_model
from gpu_mem_calculator.run.record import ModuleRecord, arithmetic
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.tools.deepspeed.read import read
from gpu_mem_calculator.tools.read import read as read_run

HERE = Path(__file__).parent
RANKS, CARD, GIB = 8, "h200", 2**30
SMALL, MOST = 12, 96  # rungs: GPT-3 Small, and where the search ends
BATCHES = (1, 8)  # samples of a rank, for the speed
ROOMS: dict[str, int | None] = {
    "ddp_fp32": None,
    "zero1_fp32": None,
    "zero2_fp32": None,
    "zero3_fp32": 24,
    "zero3_offload_fp32": 24,
    "ddp_bf16": None,
    "zero1_fp16": 24,
    "zero2_bf16": 24,
    "zero2_offload_bf16": 24,
    "zero3_bf16": 24,
    "zero3_bf16_checkpoint": 8,
}
"""The configurations, and the GiB in which their largest model is looked for; None: the whole card.

DeepSpeed's hooks run in Python for each of the heads, whose number is the rung's square: on a whole
card a step of ZeRO-3 takes minutes.
"""
PIPELINES = {"pipeline_fp32": (2, 4, 8), "pipeline_zero1_bf16": (4,)}
"""Numbers of stages."""
CHECKPOINTS = ("activation_checkpointing", "partition_activations")
RECORDS: dict[tuple[str, int, int], ModuleRecord] = {}  # by arithmetic, rung and batch
KEYS = ("allocated_bytes", "startup_bytes", "reserved_bytes", "needs_bytes")


def run_file(name: str, stages: int = 1) -> dict[str, Any]:
    """A configuration as a run of 8 ranks, or of as many as a pipeline has stages."""
    ranks = RANKS if stages == 1 else stages
    found = read(HERE / "configs" / f"{name}.json", num_gpus=ranks, model_ranks=stages)
    sections = ("training", "parallelism", "engine", "hardware")
    data: dict[str, Any] = {key: dict(found[key]) for key in sections}
    del data["training"]["batch_size"]  # the module's own
    data["parallelism"]["pipeline_parallel_size"] = stages
    data["hardware"]["gpu"] = CARD
    return data


def without_checkpoints(data: dict[str, Any]) -> dict[str, Any]:
    """The run as the module sees it: whether its blocks run twice is its own business."""
    return {
        key: {k: v for k, v in section.items() if k not in CHECKPOINTS}
        for key, section in data.items()
    }


def module_run(data: dict[str, Any]) -> ResolvedRun:
    """The run without a model, and whole: a module is recorded before it is cut."""
    given, _ = run_without_model({**without_checkpoints(data), "parallelism": {}})
    return resolve(read_run(given).file)


def record_of(data: dict[str, Any], number: int, batch_size: int = 1) -> ModuleRecord:
    """The record of a rung. Equal blocks do the same: two are run, and stand for all."""
    from gpu_mem_calculator.lab.trace.record import record

    resolved = module_run(data)
    run = resolved.run
    how = arithmetic(resolved.engine.name, run.precision, run.options, run.autocast)
    key = (how, number, batch_size)
    if key not in RECORDS:
        build = partial(bench_model.plain, number=number, n_layer=2, batch_size=batch_size)
        RECORDS[key] = record(build, resolved, f"GPT-lite, rung {number}")
    return deep(RECORDS[key], number)


def deep(found: ModuleRecord, layers: int) -> ModuleRecord:
    """The same module with more blocks like its last."""
    first, last = found.order
    own = [
        (name.removeprefix("blocks.1."), *rest)
        for name, *rest in found.buffers
        if name.startswith("blocks.1.")
    ]
    masks = tuple((f"blocks.{n}.{name}", *rest) for n in range(2, layers) for name, *rest in own)
    return replace(found, order=(first, *[last] * (layers - 1)), buffers=(*found.buffers, *masks))


def with_record(data: dict[str, Any], found: ModuleRecord) -> dict[str, Any]:
    """A run of a recorded module."""
    return {**data, "model": {"recorded": to_builtins(found)}}


def fits(data: dict[str, Any], number: int, room: int | None = None) -> bool:
    """Whether a rung trains in so many GiB of torch's, or on the card as one rank without NCCL."""
    resolved = resolve(read_run(with_record(data, record_of(data, number))).file)
    card = resolved.hardware.memory_bytes - outside_bytes(resolved.outside_torch, "fake")
    most = card if room is None else room * GIB
    if int(resolved.engine.ledger(resolved.run).peak()) > most:
        return False
    return taken_under(resolved, 0, most) == most


def largest(data: dict[str, Any], room: int | None) -> int:
    """The highest rung that fits."""
    low, high = SMALL, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(data, middle, room) else (low, middle)
    return low


def maker(name: str) -> str:
    """What makes a configuration's model."""
    return "checkpointed" if name.endswith("_checkpoint") else "plain"


def predicted(name: str) -> dict[str, Any]:
    """Everything that is said of a configuration before it runs."""
    from gpu_mem_calculator.lab.trace.run import trace

    data, room = run_file(name), ROOMS[name]
    engine = {k: v for k, v in data["engine"].items() if k != "partition_activations"}
    given, _ = run_without_model({**data, "engine": engine})  # which cuts nothing, over one rank
    traced = trace(given, build=bench_model.plain)
    return {
        "configuration": name,
        "estimated": estimated(data),
        "traced": {key: getattr(traced, key) for key in KEYS},
        "room_gib": room,
        "largest": largest(data, room),
    }


def estimated(data: dict[str, Any], batch_size: int = 1) -> dict[str, int]:
    """The figures of an estimate at GPT-3 Small's size."""
    found = full_estimate(with_record(data, record_of(data, SMALL, batch_size))).result
    return {key: getattr(found, key) for key in KEYS}


def pipeline_predicted(name: str, stages: int) -> dict[str, Any]:
    """What each stage of a pipeline allocates."""
    data = run_file(name, stages)
    estimate = full_estimate(with_record(data, record_of(data, SMALL)), replay=False)
    ledgers = enumerate(estimate.ledgers)
    found = [replay_stage(estimate.resolved, stage, ledger) for stage, ledger in ledgers]
    return {
        "configuration": name,
        "stages": stages,
        "estimated": [one.allocated_bytes for one in found if one is not None],
    }


def cases(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What to measure: each configuration, its speed, its largest model and the next one."""
    for row in rows:
        name, room = row["configuration"], row["room_gib"]
        cap = {} if room is None else {"cap_bytes": room * GIB}
        rungs = [(SMALL, batch, 8, {}) for batch in BATCHES]
        rungs += [(row["largest"] + more, 1, 2, cap) for more in (0, 1)]
        for number, batch, steps, limit in rungs:
            yield {
                "id": f"{name}-{number}-b{batch}" + (f"-{room}GiB" if limit else ""),
                "group": name,
                "steps": steps,
                "timeout": 600,
                "function": f"bench_model:{maker(name)}",
                "with": {"number": number, "batch_size": batch},
                "config": without_checkpoints(run_file(name)),
                **limit,
            }


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line, each as soon as it is there."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def predict(folder: Path) -> None:
    """Write what is predicted."""
    write_rows(folder / "predicted.jsonl", map(predicted, ROOMS))
    write_rows(
        folder / "pipelines.jsonl",
        (pipeline_predicted(name, stages) for name, each in PIPELINES.items() for stages in each),
    )


def measure(folder: Path) -> None:
    """Measure it on this machine's GPU; without one, what was measured before stands."""
    import torch

    if not torch.cuda.is_available():
        print("no GPU here: what was measured before stands")
        return
    rows = read_rows(folder / "predicted.jsonl")
    write_rows(folder / "cases.jsonl", cases(rows))
    run = [sys.executable, "-m"]
    done = folder / "measured.jsonl"
    done.unlink(missing_ok=True)
    subprocess.run(
        [
            *run,
            "gpu_mem_calculator",
            "measure",
            "--cases",
            folder / "cases.jsonl",
            "--append",
            done,
        ],
        cwd=HERE,
        check=True,
    )
    pipelines = []
    for row in read_rows(folder / "pipelines.jsonl"):
        report, averages = folder / "report.json", folder / "averages.jsonl"
        subprocess.run(
            [
                *run,
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(row["stages"]),
                "bench_ranks.py",
                "--average",
                averages,
                "--deepspeed_config",
                f"configs/{row['configuration']}.json",
                "--pipeline",
                "--pipeline_spec_layers",
                "--steps",
                "6",
                "--no_sample",
                "--report",
                report,
            ],
            cwd=HERE,
            check=True,
        )
        found = json.loads(report.read_text(encoding="utf-8"))
        found = {key: row[key] for key in ("configuration", "stages")} | {
            "measured": [rank["memory_max"] for rank in found["ranks"]],
            "average": [
                one["average_bytes"]
                for one in sorted(read_rows(averages), key=lambda one: one["rank"])
            ],
            "losses": found["losses"],
        }
        pipelines.append(found)
        report.unlink()
        averages.unlink()
    write_rows(folder / "measured_pipelines.jsonl", pipelines)
    (folder / "cases.jsonl").unlink()


def records(folder: Path) -> None:
    """Write the record of each measured model, and name it in its rows.

    Not of a model that makes its own checkpoints: its run does not say so.
    """
    rows = read_rows(folder / "measured.jsonl")
    (folder / "records").mkdir(exist_ok=True)
    for row in rows:
        if "failed" not in row and row["function"].endswith(":plain"):
            found = record_of(row["config"], row["with"]["number"], row["with"]["batch_size"])
            name = f"{found.arithmetic}-{row['with']['number']}-b{row['with']['batch_size']}.json"
            (folder / "records" / name).write_bytes(encode(found) + b"\n")
            row["record"] = f"records/{name}"
    write_rows(folder / "measured.jsonl", rows)


COMMANDS: dict[str, Callable[[Path], None]] = {
    "predict": predict,
    "measure": measure,
    "records": records,
}


if __name__ == "__main__":
    COMMANDS[sys.argv[1]](Path(sys.argv[2]).resolve())
