"""`calculate`: formats, files, --set and --check."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.estimates.result import MemoryResult

from .conftest import Command, above_the_last

CONFIGS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("*.json"))
TOO_LARGE = ("calculate", "--preset", "gpt2", "--set", "hardware.gpu_memory_gb=1")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_documented_commands_run(command: Command, configs: Path, name: str) -> None:
    """`calculate --config` works on every run file in `configs/`. Without a terminal there
    are no escape codes, and no line is wider than 80 columns.
    """
    answer = command("calculate", "--config", configs / f"{name}.json")
    assert (answer.code, answer.err) == (0, "")
    assert "GiB" in answer.out
    assert "\x1b" not in answer.out
    lines = [line for line in above_the_last(answer.out) if not line.startswith("why:")]
    assert max(map(len, lines)) <= 80


def test_json_is_the_result(command: Command, configs: Path) -> None:
    """--format json has every field of the result, with exact bytes."""
    path = configs / "pytorch_ddp_example.json"
    answer = command("calculate", "--config", path, "--format", "json")
    assert msgspec.convert(answer.data, MemoryResult) == estimate(path)


def test_yaml_says_the_same_as_json(command: Command, configs: Path) -> None:
    """--format yaml holds the same data."""
    words = ("calculate", "--config", configs / "pytorch_ddp_example.json", "--format")
    assert yaml.safe_load(command(*words, "yaml").out) == command(*words, "json").data


def test_html_is_a_page(command: Command) -> None:
    """--format html is a whole page."""
    answer = command("calculate", "--preset", "gpt2", "--format", "html")
    assert answer.code == 0
    assert answer.out.lower().startswith("<!doctype html>")


def test_output_goes_to_a_file(command: Command, tmp_path: Path) -> None:
    """--output writes the same text to a file and nothing to stdout."""
    file = tmp_path / "report.txt"
    printed = command("calculate", "--preset", "gpt2")
    answer = command("calculate", "--preset", "gpt2", "--output", file)
    assert (answer.code, answer.out) == (0, "")
    assert file.read_text(encoding="utf-8") == printed.out


def test_set_changes_the_run(command: Command) -> None:
    """--set lays a value over the run, and the last one wins."""
    words = ["calculate", "--preset", "gpt2", "--format", "json"]
    words += ["--set", "training.batch_size=2", "--set", "training.batch_size=8"]
    assert command(*words).data["run"]["training"] == {"batch_size": 8}


def test_the_result_runs_again(command: Command, tmp_path: Path) -> None:
    """The run inside a result is a run file that gives the same result."""
    first = command("calculate", "--preset", "gpt2", "--format", "json").data
    file = tmp_path / "again.json"
    file.write_text(json.dumps(first["run"]))
    assert command("calculate", "--config", file, "--format", "json").data == first


def test_check_passes_what_fits(command: Command) -> None:
    """--check on a run that fits: exit code 0 and a last line that says so."""
    answer = command("calculate", "--preset", "gpt2", "--check")
    assert answer.code == 0
    assert answer.out.splitlines()[-1].startswith("gpt2 fits: it needs ")


def test_check_stops_what_does_not_fit(command: Command) -> None:
    """--check on a run that does not fit: exit code 1 and a last line that says so."""
    answer = command(*TOO_LARGE, "--check")
    assert answer.code == 1
    assert answer.out.splitlines()[-1].startswith("gpt2 does not fit: it needs ")
    assert " GiB short; assumed: 1 GPU, 1,024 tokens." in answer.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("margins", "code", "begin", "end"),
    [
        (2, 0, "gpt2 fits: it needs ", " GiB to spare; assumed: 1 GPU, 1,024 tokens."),
        (
            0.5,
            3,
            "cannot tell whether gpt2 fits: ",
            " within the margin; assumed: 1 GPU, 1,024 tokens.",
        ),
    ],
)
def test_check_stops_what_nobody_can_tell(
    command: Command, margins: float, code: int, begin: str, end: str
) -> None:
    """Within the margin the sentence says so, and the exit code is 3."""
    words = ["calculate", "--preset", "gpt2", "--check"]
    data = command(*words, "--format", "json").data
    has = data["needs_bytes"] + data["outside_torch_bytes"] + int(margins * data["margin_bytes"])
    answer = command(*words, "--set", f"hardware.gpu_memory_bytes={has}")
    last = answer.out.splitlines()[-1]
    assert answer.code == code
    assert last.startswith(begin)
    assert end in last


def test_check_leaves_json_whole(command: Command) -> None:
    """With --format json the sentence goes to stderr, so that stdout stays data."""
    answer = command(*TOO_LARGE, "--check", "--format", "json")
    assert answer.code == 1
    assert answer.data["fits_on_gpu"] is False
    assert answer.err.startswith("gpt2 does not fit")


def test_without_check_a_run_that_does_not_fit_is_an_answer(command: Command) -> None:
    """A report about a run that does not fit is no failure."""
    answer = command(*TOO_LARGE)
    assert answer.code == 0
    assert "does not fit" in answer.out
