"""`measure` on a machine without a GPU: a made-up card, and jobs that only say what they took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.measure import card, ranks, worker
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import Tell
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run

from .conftest import Command

GIB = 2**30


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def fake_job(case: MeasureCase, tell: Tell) -> dict[str, Any]:
    """A rank that takes exactly what the estimate says; what `id` names goes wrong."""
    estimate = full_estimate(case.config)
    peak = estimate.result.allocated_bytes
    phases = {
        name: {"start_next_bytes": 1, "peak_bytes": size, "reserved_bytes": peak + GIB}
        for name, size in (("model", peak // 2), ("s1.a0.fwd", peak - 1), ("s1.a0.bwd", peak))
    }
    for name, phase in phases.items():
        tell({"phase": name, **phase})
    if "oom" in case.id or (case.cap_bytes or peak) < peak:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")
    if "refused" in case.id:
        raise InputError(["this job cannot be run"])
    if "stuck" in case.id:
        time.sleep(60)
    around = {"gpu": "Fake GPU", "process_group": program(case.config).process_group}
    return {
        **worker.row_head(case, "fsdp"),
        "measured": {
            "allocated_bytes": peak,
            "startup_bytes": peak // 2,
            "step_seconds": 0.5,
            "reserved_bytes": peak + GIB,
            "device_bytes": peak + 2 * GIB,
            "context_bytes": 2 * GIB,
        },
        "phases": phases,
        "environment": around if case.cap_bytes is None else {**around, "cap_bytes": 1},
    }


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card with 80 GiB on which jobs take what is estimated."""
    monkeypatch.setattr(
        card, "find_card", lambda: card.DriverCard(name="Fake", memory_bytes=80 * GIB)
    )
    monkeypatch.setattr(card, "import_once", lambda: None)
    monkeypatch.setattr(worker, "measure_case", fake_job)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small run's file."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(small_run("fsdp")))
    return path


Write = Callable[..., Path]


@pytest.fixture
def cases(tmp_path: Path) -> Write:
    """Write a file of cases with these names."""

    def write(*names: str) -> Path:
        path = tmp_path / "cases.jsonl"
        rows = [{"id": name, "config": small_run("fsdp")} for name in names]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("gpu")
def test_one_run_is_reported_and_compared(command: Command, config: Path) -> None:
    """Figures, phases with the highest marked, and the estimate beside them."""
    answer = command("measure", "--config", config)
    assert (answer.code, answer.err) == (0, "")
    assert "► s1.a0.bwd" in answer.out
    allocated = next(line for line in answer.out.splitlines() if line.startswith("allocated "))
    assert "reserved" in allocated
    assert "+0.00 %" in answer.out
    assert "2.00 GiB of the card were in use" in answer.out
    assert "--append runs.jsonl" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.usefixtures("gpu")
def test_json_is_the_row_and_the_file_has_it(
    command: Command, config: Path, tmp_path: Path
) -> None:
    """--format json prints the line that --append keeps; a second run gets a name of its own."""
    kept = tmp_path / "runs.jsonl"
    words = ("measure", "--config", config, "--append", kept, "--format", "json", "--rank", "3")
    first, second = command(*words), command(*words)
    printed = [first.data, second.data]
    assert all(one.pop("schema_version") for one in printed)
    assert rows_of(kept) == printed
    assert [row["id"] for row in rows_of(kept)] == ["run.rank3", "run.rank3-2"]
    assert first.data["rank"] == 3


@pytest.mark.usefixtures("gpu")
def test_backtest_scores_what_was_kept(command: Command, config: Path, tmp_path: Path) -> None:
    """The report names the command, and the command works."""
    kept = tmp_path / "runs.jsonl"
    answer = command("measure", "--config", config, "--append", kept)
    assert f"gpu-mem-calc backtest {kept}" in answer.out.replace(" \\\n         ", " ")
    scored = command("backtest", kept, "--format", "json")
    assert scored.code == 0
    assert scored.data["rows"][0]["allocated"]["error_pct"] == 0


@pytest.mark.usefixtures("gpu")
def test_a_run_that_runs_out_of_memory_is_a_report(command: Command, config: Path) -> None:
    """Why, how far it came, exit code 1, no traceback."""
    answer = command("measure", "--config", config, "--cap", "1MiB")
    assert (answer.code, answer.err) == (1, "")
    assert "failed: out of memory after s1.a0.bwd" in answer.out
    assert "Traceback" not in answer.out


@pytest.mark.usefixtures("gpu")
def test_the_least_memory_is_reported(command: Command, config: Path) -> None:
    """--find-minimum adds both ends."""
    row = command("measure", "--config", config, "--find-minimum", "--format", "json").data
    peak = row["measured"]["allocated_bytes"]
    assert row["measured"]["fails_in_bytes"] < peak <= row["measured"]["survives_in_bytes"]
    shown = command("measure", "--config", config, "--find-minimum").out
    assert "survives in" in shown


@pytest.mark.usefixtures("gpu")
def test_the_least_memory_is_looked_for_between_two_caps(command: Command, config: Path) -> None:
    """No run without a cap; each try is in the row, and the report counts them."""
    peak = full_estimate(small_run("fsdp")).result.allocated_bytes
    words = ("measure", "--config", config, "--find-minimum")
    words = (*words, "--between", f"{peak * 9 // 10}B:{peak * 11 // 10}B")
    row = command(*words, "--format", "json").data
    assert row["measured"]["fails_in_bytes"] < peak <= row["measured"]["survives_in_bytes"]
    assert len(row["tries"]) > 2
    assert {one["survived"] for one in row["tries"]} == {True, False}
    assert f"{len(row['tries'])} tries, " in command(*words).out


@pytest.mark.usefixtures("gpu")
def test_bounds_of_a_case_need_the_search(command: Command, cases: Write, tmp_path: Path) -> None:
    """They are not read without it."""
    path = cases("a")
    path.write_text(json.dumps({**rows_of(path)[0], "bounds_bytes": [1, 2 * GIB]}))
    answer = command("measure", "--cases", path, "--append", tmp_path / "runs.jsonl")
    assert answer.code == 2
    assert "'a' has bounds_bytes, which --find-minimum takes" in answer.err


@pytest.mark.usefixtures("gpu")
def test_many_cases_have_a_line_each_and_go_on(
    command: Command, cases: Write, tmp_path: Path
) -> None:
    """Failures are kept, refusals are not, and what is there is not measured again."""
    kept = tmp_path / "runs.jsonl"
    words = ("measure", "--cases", cases("a", "oom", "refused", "b"), "--append", kept)
    answer = command(*words)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["a", "oom", "refused", "b"]
    assert lines[4].startswith("2 measured, 1 failed, 1 refused")
    assert [row["id"] for row in rows_of(kept)] == ["a", "oom", "b"]
    assert "est. +0.00 %" in lines[0]
    again = command(*words)
    assert "3 of 4 cases are in" in again.err
    assert [row["id"] for row in rows_of(kept)] == ["a", "oom", "b"]
    command(*words, "--again")
    assert [row["id"] for row in rows_of(kept)] == ["a", "oom", "b", "oom"]


@pytest.mark.usefixtures("gpu")
def test_many_cases_as_json_leave_stdout_to_the_data(
    command: Command, cases: Write, tmp_path: Path
) -> None:
    """Progress goes to stderr; options and --set hold for every case."""
    words = ["measure", "--cases", cases("a", "b"), "--append", tmp_path / "runs.jsonl"]
    words += ["--format", "json", "--rank", "2", "--set", "training.batch_size=3"]
    answer = command(*words)
    assert [row["rank"] for row in answer.data] == [2, 2]
    assert {row["config"]["training"]["batch_size"] for row in answer.data} == {3}
    assert "a " in answer.err


@pytest.mark.usefixtures("gpu")
def test_a_case_that_hangs_has_a_timeout(command: Command, cases: Write, tmp_path: Path) -> None:
    """--timeout, and the next case runs."""
    kept = tmp_path / "runs.jsonl"
    command("measure", "--cases", cases("stuck", "b"), "--append", kept, "--timeout", "2")
    assert "still running after 2 s" in rows_of(kept)[0]["failed"]
    assert rows_of(kept)[1]["id"] == "b"


@pytest.mark.usefixtures("gpu")
def test_ctrl_c_says_where_it_stopped(
    command: Command, cases: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished cases are kept, and the exit code is the shell's for an interrupt."""
    from gpu_mem_calculator.lab.measure import cases as module

    real = module.measure_one

    def interrupted(case: MeasureCase, *rest: Any) -> Any:
        if case.id == "b":
            raise KeyboardInterrupt
        return real(case, *rest)

    monkeypatch.setattr(module, "measure_one", interrupted)
    kept = tmp_path / "runs.jsonl"
    answer = command("measure", "--cases", cases("a", "b"), "--append", kept)
    assert answer.code == 130
    assert "stopped; 1 finished cases are in" in answer.err
    assert [row["id"] for row in rows_of(kept)] == ["a"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--config", "x", "--cases", "y", "--append", "z"],
            "give one of --config, --preset and --cases",
        ),
        (["--cases", "y"], "--cases needs --append FILE"),
        (["--cases", "y", "--append", "z", "--snapshot", "s"], "--snapshot is for one run"),
        (["--preset", "gpt2", "--cap", "24", "--find-minimum"], "leave --cap out"),
        (["--preset", "gpt2", "--between", "2:3"], "--between is for --find-minimum"),
        (["--preset", "gpt2", "--find-minimum", "--between", "3:2"], "the lower one first"),
        (["--preset", "gpt2", "--find-minimum", "--between", "3"], "must be a size such as"),
        (["--preset", "gpt2", "--again"], "--again is for --cases"),
        (["--preset", "gpt2", "--cap", "lots"], "--cap 'lots' must be a size such as 24GiB"),
        (["--preset", "gpt2", "--rank", "1"], "--rank 1: the job has 1 rank; use 0"),
        (["--preset", "gpt2", "--rank", "-1"], "--rank"),
        (["--preset", "gpt2", "--cap", "200GiB"], "more than the Fake has, 80.0; give less"),
        (["--preset", "gpt2", "--id", "refused"], "this job cannot be run"),
        ([], "give one of --config FILE and --preset NAME"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_mistakes_are_one_sentence(command: Command, words: list[str], sentence: str) -> None:
    """Exit code 2, nothing on stdout."""
    answer = command("measure", *words)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert len(answer.err.splitlines()) == 1


def test_under_a_launcher_every_rank_is_reported(
    command: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of the ranks, and a line for each in the file."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("gpu_mem_calculator.cli.measure.require_torch", lambda: None)

    def real_job(
        case: MeasureCase, place: ranks.RankPlace, append: str | None
    ) -> list[dict[str, Any]]:
        row = fake_job(case, lambda message: None)
        return [{**row, "rank": i, "id": f"{case.id}.rank{i}"} for i in range(place.ranks)]

    monkeypatch.setattr("gpu_mem_calculator.cli.measure.measure_rank", real_job)
    kept = tmp_path / "runs.jsonl"
    answer = command("measure", "--config", config, "--append", kept)
    assert answer.code == 0
    assert [line.split()[1] for line in answer.out.splitlines() if line.startswith("rank")] == [
        str(number) for number in range(8)
    ]
    assert [row["id"] for row in rows_of(kept)] == [f"run.rank{i}" for i in range(8)]
    refused = command("measure", "--config", config, "--rank", "1")
    assert "the launcher says which rank" in refused.err
    refused = command("measure", "--config", config, "--find-minimum")
    assert "under a launcher measure takes one run" in refused.err
