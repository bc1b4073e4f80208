"""The benchmark: what is estimated for GPT-lite is what an H200 measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

import bench

from tests.corpus import sampled

DATA = Path(__file__).parents[2] / "docs" / "gptlite"
MEASURED = {row["id"]: row for row in bench.read_rows(DATA / "measured.jsonl")}
SMALL = [row for row in MEASURED.values() if f"-{bench.SMALL}-" in row["id"]]
PIPELINES = bench.read_rows(DATA / "measured_pipelines.jsonl")


@pytest.mark.parametrize("row", sampled({row["id"]: row for row in SMALL}, keep=1))
def test_the_estimate_is_what_was_measured(row: dict[str, Any]) -> None:
    """Within 2 %, the promise; within half a percent, as it is. Reserved within 3 %, but for
    DeepSpeed's checkpoints, whose contiguous buffers are one per layer here.
    """
    found = bench.estimated(bench.run_file(row["group"]), row["with"]["batch_size"])
    measured = row["measured"]
    assert found["allocated_bytes"] == pytest.approx(measured["allocated_bytes"], rel=0.005)
    assert found["startup_bytes"] == pytest.approx(measured["startup_bytes"], rel=0.005)
    wide = 0.12 if row["group"].endswith("_checkpoint") else 0.03
    assert found["reserved_bytes"] == pytest.approx(measured["reserved_bytes"], rel=wide)


@pytest.mark.parametrize(
    "row", sampled({f"{row['configuration']}-{row['stages']}": row for row in PIPELINES}, keep=1)
)
def test_every_stage_of_a_pipeline(row: dict[str, Any]) -> None:
    """Within 2 % of what each rank allocated."""
    found = bench.pipeline_predicted(row["configuration"], row["stages"])
    assert found["estimated"] == pytest.approx(row["measured"], rel=0.02)


def outcomes(name: str) -> dict[int, bool]:
    """Rungs that were tried beyond the smallest, and whether they trained."""
    return {
        row["with"]["number"]: "failed" not in row
        for row in MEASURED.values()
        if row["group"] == name and row["with"]["number"] != bench.SMALL
    }


@pytest.mark.proof
@pytest.mark.parametrize("name", [name for name in bench.ROOMS if len(outcomes(name)) > 1])
def test_the_largest_model(name: str) -> None:
    """Every rung that was tried is told right: it trains, or runs out of memory."""
    data, room = bench.run_file(name), bench.ROOMS[name]
    tried = outcomes(name)
    told = {number: bench.fits(data, number, room) for number in tried}
    assert told == tried


def test_trials_are_on_both_sides() -> None:
    """Of most configurations the largest that trains and the next one were tried."""
    both = [name for name in bench.ROOMS if {True, False} <= set(outcomes(name).values())]
    assert len(both) >= 8


def test_deeper_is_the_same_module() -> None:
    """Two blocks that stand for twelve are the record of twelve."""
    from functools import partial

    import bench_model

    from gpu_mem_calculator.lab.trace.record import record

    data = bench.run_file("zero2_bf16")
    whole = record(partial(bench_model.plain, number=4), bench.module_run(data), "")
    deep = bench.record_of(data, 4)
    for key in ("order", "buffers", "layers", "before", "after", "held", "kept", "biases"):
        assert getattr(deep, key) == getattr(whole, key), key
