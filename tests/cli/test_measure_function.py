"""`measure --function`, with a made-up card and jobs that only say what they took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli import measure
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.lab.measure import card, worker
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import Tell
from tests.conftest import small_run

from .conftest import Command

GIB = 2**30
OWN = (
    "measure",
    "--function",
    "my_project.train:make",
    "--with",
    "n_layer=24",
    "--with",
    "text=abc",
    "--set",
    "engine.type=deepspeed",
    "--set",
    "hardware.num_gpus=8",
)


def own_model(case: MeasureCase, tell: Tell) -> dict[str, Any]:
    """A rank that trains what a function made."""
    measured = {
        "allocated_bytes": GIB,
        "reserved_bytes": GIB,
        "step_seconds": 0.5,
        "average_bytes": GIB // 2,
        "utilization_pct": 97.6,
    }
    return {
        **worker.row_head(case, "deepspeed"),
        "measured": measured,
        "phases": {},
        "environment": {"gpu": "Fake GPU", "process_group": "fake"},
    }


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card with 80 GiB."""
    monkeypatch.setattr(
        card, "find_card", lambda: card.DriverCard(name="Fake", memory_bytes=80 * GIB)
    )
    monkeypatch.setattr(card, "import_once", lambda: None)
    monkeypatch.setattr(worker, "measure_case", own_model)


def test_a_function_is_measured(command: Command, tmp_path: Path) -> None:
    """Without a run file; its name and arguments are in the row, and no estimate beside it."""
    kept = tmp_path / "runs.jsonl"
    answer = command(*OWN, "--append", kept)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("my_project.train:make\nwith n_layer=24, text='abc'\n")
    assert "0.500 s a step, 0.50 GiB on average in the last, GPU busy 98 %" in answer.out
    assert "estimate" not in answer.out
    (row,) = [json.loads(line) for line in kept.read_text().splitlines()]
    assert (row["id"], row["function"]) == ("my_project.train.make", "my_project.train:make")
    assert row["with"] == {"n_layer": 24, "text": "abc"}
    assert row["config"] == {"engine": {"type": "deepspeed"}, "hardware": {"num_gpus": 8}}
    assert "which backtest does not run" in " ".join(command("backtest", kept).out.split())


def test_a_case_has_a_function_of_its_own(command: Command, tmp_path: Path) -> None:
    """Rows say which; one on the command line would be for none of them."""
    cases, kept = tmp_path / "cases.jsonl", tmp_path / "runs.jsonl"
    case = {"id": "a", "config": {}, "function": "m:f", "with": {"n": 3}}
    cases.write_text(json.dumps(case))
    words = ("measure", "--cases", cases, "--append", kept)
    answer = command(*words, "--function", "m:f")
    assert answer.code == 2
    assert "a case names its own in 'function'" in answer.err
    assert command(*words).code == 0
    row = json.loads(kept.read_text())
    assert (row["function"], row["with"]) == ("m:f", {"n": 3})


def test_what_a_function_replaces_is_named(command: Command, tmp_path: Path) -> None:
    """The run file's model and batch, which it has no use for."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(small_run("fsdp")))
    answer = command("measure", "--config", path, "--function", "m:f")
    assert answer.code == 0
    assert "Not used, because the function makes them: model, training.batch_size" in answer.err


def test_every_rank_on_ray_is_given_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its arguments, as they were typed."""
    seen: list[list[str]] = []

    def run(shape: Any, words: list[str]) -> int:
        seen.append(words)
        return 0

    monkeypatch.setattr(measure, "run_over_ray", run)
    assert main([*OWN, "--ray", "1x8"]) == 0
    (words,) = seen
    at = words.index("--function")
    assert words[at : at + 6] == [*OWN[1:7]]
    assert "--preset" not in words
