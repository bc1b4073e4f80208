"""Commands that people would type, written down before any of them was run.

Each ends in an answer or in one short sentence. `results.jsonl` has what each of them answered
when it was last read by a person, and whether that was right.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.corpus import sampled
from tests.questions.asking import CODES, run_command

HERE = Path(__file__).parent
LONGEST = 200  # characters of a refusal
SAMPLE, SLOW = 40, 8
PROGRAM = "gpu-mem-calc: "


def natural() -> list[dict[str, Any]]:
    """The commands."""
    text = (HERE / "natural.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def results() -> list[dict[str, Any]]:
    """What each of them answered, and how it was judged."""
    text = (HERE / "results.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def words(command: str) -> tuple[str, ...]:
    """The words of a command as a shell passes them; one with an open quote as it is split."""
    try:
        found = shlex.split(command)
    except ValueError:
        found = command.split()
    return tuple(found[1:])


def cases() -> list[Any]:
    """Every command in make proof; a sample in make test, mostly of refusals, which are quick."""
    refused = {one["id"] for one in results() if one["code"] == 2}
    quick = {str(row["id"]): row for row in natural() if row["id"] in refused}
    others = {str(row["id"]): row for row in natural() if row["id"] not in refused}
    served = {name: row for name, row in others.items() if " infer " in row["command"]}
    rest = {name: row for name, row in others.items() if name not in served}
    return [*sampled(quick, SAMPLE), *sampled(served, SLOW), *sampled(rest, 0)]


@pytest.mark.parametrize("row", cases())
def test_a_natural_command_is_answered_or_refused_in_a_sentence(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback; a known exit code; a refusal is one line that fits on a screen."""
    monkeypatch.chdir(ROOT)
    code, out, err = run_command(words(row["command"]))
    assert code in CODES, err
    assert "Traceback" not in out + err
    assert out + err
    if code == 2:
        lines = err.splitlines()
        assert len(lines) == 1, err
        assert len(lines[0].removeprefix(PROGRAM)) <= LONGEST, err


def test_every_natural_command_is_judged() -> None:
    """As many results as commands, each with a verdict of a person and what was printed first."""
    assert [one["id"] for one in results()] == [one["id"] for one in natural()]
    assert {one["judged"] for one in results()} <= {"right", "wrong", "unclear"}
    assert all(re.search(r"\S", one["first"]) for one in results())
    assert all(bool(one["note"]) == (one["judged"] != "right") for one in results())
