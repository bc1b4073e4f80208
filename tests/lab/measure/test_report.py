"""The report of a measurement, for what goes wrong and for what is long."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.lab.backtest.predict import by_estimate
from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.measure.cases import CaseResult
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.measurement import case_line, comparisons, measurement_report
from tests.conftest import small_run

GIB = 2**30


def result(config: Any = None, log: str = "", **rest: Any) -> CaseResult:
    """A result whose row has these keys over a run that went well."""
    config = config or small_run("fsdp")
    row = {
        "id": "a",
        "group": "fsdp",
        "config": config,
        "rank": 0,
        "measured": {"allocated_bytes": 3 * GIB, "reserved_bytes": 4 * GIB, "context_bytes": 1},
        "phases": {"s1.opt": {"peak_bytes": 3 * GIB}},
        "environment": {"gpu": "Fake GPU"},
        **rest,
    }
    return CaseResult(case=MeasureCase(id="a", config=config), row=row, log=log)


def shown(found: CaseResult) -> str:
    """The report as text, no line too wide."""
    text = plain(list(measurement_report(found, None)))
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_a_job_that_broke_shows_its_own_words() -> None:
    """Our line first, then the end of what it printed."""
    text = shown(result(failed="KeyError: 'x' (after model)", measured={}, log="Traceback\nhere"))
    assert text.index("failed: KeyError: 'x' (after model)") < text.index("  Traceback\n  here")


def test_running_out_of_memory_needs_no_traceback() -> None:
    """It is a result like any other."""
    found = result(failed="out of memory after model: ...", measured={}, phases={}, log="Traceback")
    assert "Traceback" not in shown(found)


def test_the_conditions_are_said() -> None:
    """The cap and the allocator's settings, and why nothing is said of reserved memory."""
    around = {"gpu": "Fake GPU", "cap_bytes": 24 * GIB, "alloc_conf": "expandable_segments:True"}
    text = shown(result(environment=around, measured={"allocated_bytes": GIB}))
    assert "torch capped at 24.00 GiB, expandable_segments:True" in " ".join(text.split())
    assert "torch freed its cache" in text


def test_of_many_phases_the_first_and_the_last_step_are_shown() -> None:
    """What lies between is counted."""
    phases = {f"s{step}.a{i}.bwd": {"peak_bytes": GIB + i} for step in range(4) for i in range(10)}
    text = shown(result(phases={"model": {"peak_bytes": GIB}, **phases}))
    assert "s0.a9.bwd" in text
    assert "s3.a0.bwd" in text
    assert "s1.a0.bwd" not in text
    assert "(20 phases of the steps between left out)" in text


def test_a_run_that_is_not_estimated_is_still_reported() -> None:
    """A prompt longer than the model's positions has no estimate beside it."""
    config = {"model": {"name": "gpt2"}, "inference": {"batch_size": 2, "prompt_len": 2048}}
    text = shown(result(config=config, phases={"generate": {"peak_bytes": 3 * GIB}}))
    assert "the run took 3.00 GiB at its highest" in text
    assert "compared with the estimate" not in text


def test_a_line_says_the_least_memory() -> None:
    """Where it was looked for."""
    measured = {"allocated_bytes": 3 * GIB, "survives_in_bytes": 4 * GIB, "fails_in_bytes": 1}
    assert ", survives in 4.00" in plain([case_line(result(measured=measured))])


def test_what_the_replay_gives_is_compared() -> None:
    """Allocated, reserved, least and device memory, and each kind of phase: row by row."""
    config = small_run("fsdp")
    row: dict[str, Any] = {
        "id": "a",
        "group": "x",
        "config": config,
        "measured": {"survives_in_bytes": 1},
    }
    made = by_estimate(rows_from([row])[0])
    measured = {
        "allocated_bytes": made.allocated,
        "reserved_bytes": made.reserved,
        "survives_in_bytes": made.needs,
        "fails_in_bytes": 1,
        "device_bytes": made.device,
        "host_bytes": made.host,
    }
    phases = {"s0.a0.fwd": {"peak_bytes": 1}, "s1.a0.bwd": {"peak_bytes": made.allocated}}
    around = {"gpu": "Fake GPU", "process_group": "nccl"}
    row = {"measured": measured, "phases": phases, "environment": around}
    found = list(comparisons(result(config, **row).row or {}))
    assert [name for name, _, _ in found] == [
        "allocated",
        "reserved",
        "needs",
        "nvidia-smi",
        "host RAM",
        "backward",
    ]
    assert all(predicted == seen for _, predicted, seen in found)
    text = shown(result(config, **row))
    assert text.count("+0.00 %") == len(found)


def test_the_allocators_settings_of_the_measurement_are_those_of_the_comparison() -> None:
    """Expandable segments reserve less, and the estimate beside them knows it."""
    around = {"gpu": "Fake GPU", "alloc_conf": "expandable_segments:True"}
    rows = (result().row or {}, result(environment=around).row or {})
    plainly, expandable = (
        [one for one in comparisons(row) if one[0] == "reserved"] for row in rows
    )
    assert len(plainly) == len(expandable) == 1
    assert plainly != expandable


def test_the_unit_ends_where_the_figures_end() -> None:
    """`GiB` heads the column of the phases' peaks."""
    lines = shown(result()).splitlines()
    head = next(line for line in lines if line.startswith("phases"))
    row = next(line for line in lines if "s1.opt" in line)
    assert head.index("GiB") + len("GiB") == row.index("3.00") + len("3.00")
