"""Many cases, with jobs that do what real ones do: finish, run out, die, hang."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.measure.cases import CaseResult, measure_cases, measure_one
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import Tell
from gpu_mem_calculator.lab.measure.runs_file import Row, RunsFile
from gpu_mem_calculator.lab.measure.worker import row_head
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run

GIB = 2**30
NEEDS = 11 * GIB
PHASES = ("model", "s0.a0.fwd", "s0.a0.bwd", "s0.opt")


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def job(case: MeasureCase, tell: Tell) -> Row:
    """A job that does what its case's name says; under a cap it may run out of memory."""
    tell(
        {
            "environment": {"gpu": "none", "process_group": "fake"},
            "group": "fsdp",
            "context_bytes": 7,
            "phases": PHASES,
        }
    )
    tell({"phase": "model", "peak_bytes": 1, "start_next_bytes": 1, "reserved_bytes": 1})
    tell({"phase": "s0.a0.fwd", "peak_bytes": 2, "start_next_bytes": 1, "reserved_bytes": 2})
    if case.id == "full" or (case.cap_bytes is not None and case.cap_bytes < NEEDS):
        tell({"died": {"retries": 3, "allocated_bytes": 8, "reserved_bytes": 9, "free_bytes": 5}})
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")
    if case.id == "cublas":
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
    if case.id == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if case.id == "hangs":
        time.sleep(60)
    if case.id == "wrong":
        raise InputError(["training.optimizer: not this one"])
    if case.id == "lacks":
        raise ModuleNotFoundError("No module named 'deepspeed'")
    if case.id == "breaks":
        raise AttributeError("no such thing")
    return {
        **row_head(case, "fsdp"),
        "phases": {},
        "environment": {},
        "measured": {"allocated_bytes": 10 * GIB, "reserved_bytes": 14 * GIB},
    }


def case(name: str, **rest: Any) -> MeasureCase:
    """A case of a small run."""
    return MeasureCase(id=name, config=small_run("fsdp"), timeout=20.0, **rest)


def measured(name: str, **rest: Any) -> CaseResult:
    """What came of one case."""
    return measure_one(case(name, **rest), job)


def test_a_case_that_ends_well_has_its_row() -> None:
    """The row is the worker's."""
    result = measured("fine")
    assert result.row is not None
    assert result.row["measured"]["allocated_bytes"] == 10 * GIB
    assert result.failed == ""


@pytest.mark.parametrize("name", ["full", "cublas"])
def test_running_out_of_memory_is_a_result(name: str) -> None:
    """Where it was, what was measured until then, and no figure for the whole."""
    result = measured(name)
    assert result.failed.startswith("out of memory in s0.a0.bwd: ")
    assert result.row is not None
    assert list(result.row["phases"]) == ["model", "s0.a0.fwd"]
    assert result.row["measured"] == {"context_bytes": 7}
    assert result.row["environment"]["process_group"] == "fake"
    assert result.row["group"] == "fsdp"


def test_a_cap_that_is_too_small_is_in_the_row() -> None:
    """A run that fails under a cap says under which."""
    row = measured("fine", cap_bytes=10 * GIB).row
    assert row is not None
    assert row["measured"]["fails_in_bytes"] == 10 * GIB


@pytest.mark.parametrize(
    ("name", "why"),
    [("dies", "ended by SIGKILL"), ("breaks", "AttributeError: no such thing (in s0.a0.bwd)")],
)
def test_a_job_that_dies_or_breaks_is_a_result(name: str, why: str) -> None:
    """Not a crash of the command."""
    assert why in measured(name).failed


def test_a_job_that_hangs_is_a_result() -> None:
    """After its own timeout."""
    result = measure_one(MeasureCase(id="hangs", config=small_run("fsdp"), timeout=1.0), job)
    assert result.failed == "still running after 1 s, and stopped (in s0.a0.bwd)"


@pytest.mark.parametrize(
    ("name", "why"),
    [("wrong", "training.optimizer: not this one"), ("lacks", "No module named 'deepspeed'")],
)
def test_what_cannot_start_is_refused_and_not_kept(tmp_path: Path, name: str, why: str) -> None:
    """Bad input and missing packages are no measurements."""
    file = RunsFile(tmp_path / "runs.jsonl")
    (result,) = measure_cases([case(name)], job, file=file)
    assert why in result.refused[0]
    assert file.ids() == set()


def test_each_row_is_on_disk_before_the_next_case_starts(tmp_path: Path) -> None:
    """The child of every case sees the rows of those before it."""
    path = tmp_path / "runs.jsonl"

    def look(case: MeasureCase, tell: Tell) -> Row:
        return {"id": case.id, "seen": path.read_text().count("\n") if path.exists() else 0}

    results = measure_cases([case("a"), case("b"), case("c")], look, file=RunsFile(path))
    assert [result.row and result.row["seen"] for result in results] == [0, 1, 2]


def test_an_interrupt_leaves_whole_lines(tmp_path: Path) -> None:
    """What was finished is in the file; what was at work is not."""
    path = tmp_path / "runs.jsonl"

    def heard(case: MeasureCase, phase: str) -> None:
        if case.id == "b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(measure_cases([case("a"), case("b")], job, file=RunsFile(path), on_phase=heard))
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a"]


def test_the_phase_at_work_is_heard() -> None:
    """For a progress bar."""
    phases: list[str] = []
    list(measure_cases([case("fine")], job, on_phase=lambda case, phase: phases.append(phase)))
    assert phases == ["model", "s0.a0.fwd"]


def test_the_least_memory_is_found_with_fresh_processes() -> None:
    """The cap's two ends join the row of the roomy run."""
    (result,) = measure_cases([case("fine")], job, minimum=True)
    assert result.row is not None
    found = result.row["measured"]
    assert found["fails_in_bytes"] < NEEDS <= found["survives_in_bytes"] < 1.005 * NEEDS
    assert found["allocated_bytes"] == 10 * GIB


def test_every_try_is_in_the_row() -> None:
    """Whether it survived, and the phase of death with torch's counters."""
    (result,) = measure_cases([case("fine")], job, minimum=True)
    assert result.row is not None
    tries = result.row["tries"]
    died = [one for one in tries if not one["survived"]]
    assert {one["cap_bytes"] >= NEEDS for one in tries if one["survived"]} == {True}
    assert {(one["phase"], one["retries"], one["reserved_bytes"]) for one in died} == {
        ("s0.a0.bwd", 3, 9)
    }
    assert max(one["cap_bytes"] for one in died) == result.row["measured"]["fails_in_bytes"]
    rows_from([result.row])


@pytest.mark.parametrize(
    "bounds", [(10 * GIB, 14 * GIB), (9 * GIB, 10 * GIB), (12 * GIB, 13 * GIB)]
)
def test_the_least_memory_is_looked_for_between_given_bounds(bounds: tuple[int, int]) -> None:
    """No run without a cap; bounds that are wrong are moved."""
    (result,) = measure_cases([case("fine", bounds_bytes=bounds)], job, minimum=True)
    assert result.row is not None
    found = result.row["measured"]
    assert found["fails_in_bytes"] < NEEDS <= found["survives_in_bytes"] < 1.005 * NEEDS
    assert {one["cap_bytes"] for one in result.row["tries"]} > {found["fails_in_bytes"]}


def test_a_run_under_a_cap_has_one_try() -> None:
    """It survived, or it says where it died."""
    survived = measured("fine", cap_bytes=NEEDS).row
    died = measured("fine", cap_bytes=NEEDS - 1).row
    assert survived is not None
    assert died is not None
    assert [(one["cap_bytes"], one["survived"]) for one in survived["tries"]] == [(NEEDS, True)]
    assert [(one["phase"], one["survived"]) for one in died["tries"]] == [("s0.a0.bwd", False)]


def test_a_try_that_dies_ends_the_search() -> None:
    """A bisection rests on memory alone; anything else leaves the row without the two ends."""

    def fragile(case: MeasureCase, tell: Tell) -> Row:
        return job(case, tell) if case.cap_bytes is None else os._exit(3)

    (result,) = measure_cases([case("fine")], fragile, minimum=True)
    assert result.row is not None
    assert "survives_in_bytes" not in result.row["measured"]
    assert "exit code 3" in result.log


def test_backtest_reads_the_rows() -> None:
    """Rows that ended well are rows of `backtest`."""
    row = measured("fine").row
    assert row is not None
    (found,) = rows_from([row])
    assert found.measured["allocated_bytes"] == 10 * GIB
