"""Cases from a file, and their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.measure.cases_file import MeasureCase, fresh_id, read_cases
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import HERE, small_run


def written(path: Path, *rows: Any) -> Path:
    """A file with these objects, one a line."""
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_a_case_has_what_its_line_says(tmp_path: Path) -> None:
    """Every key of a line, and defaults for what is left out."""
    run = small_run()
    path = written(
        tmp_path / "cases.jsonl",
        {"id": "a", "config": run},
        {"id": "c", "config": {}, "function": "m:f", "with": {"n_layer": 24, "text": None}},
        {
            "id": "b",
            "group": "fsdp",
            "config": run,
            "rank": 3,
            "steps": 2,
            "cap_bytes": 5,
            "alloc_conf": "expandable_segments:True",
            "timeout": 7,
        },
    )
    assert read_cases(path) == [
        MeasureCase(id="a", config=run),
        MeasureCase(id="c", config={}, function="m:f", values={"n_layer": 24, "text": None}),
        MeasureCase(
            id="b",
            group="fsdp",
            config=run,
            rank=3,
            steps=2,
            cap_bytes=5,
            alloc_conf="expandable_segments:True",
            timeout=7,
        ),
    ]


def test_measured_runs_are_cases(tmp_path: Path) -> None:
    """A file of measured runs can be measured again, under the same conditions."""
    cases = read_cases(HERE / "ground_truth" / "runs.jsonl")
    assert len(cases) == 51
    row = {
        "id": "a",
        "config": {},
        "measured": {"allocated_bytes": 1},
        "environment": {"cap_bytes": 9, "alloc_conf": "x:1", "steps": 2},
    }
    (case,) = read_cases(written(tmp_path / "runs.jsonl", row))
    assert (case.cap_bytes, case.alloc_conf, case.steps) == (9, "x:1", 2)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ([1], "line 1: a case is an object"),
        ({"config": {}}, "line 1: id is missing"),
        ({"id": "a"}, "line 1: config is missing"),
        ({"id": "a", "config": {}, "rank": -1}, "rank=-1 must be a whole number, 0 or more"),
        ({"id": "a", "config": {}, "steps": 0}, "steps=0 must be a whole number, 1 or more"),
        ({"id": "a", "config": {}, "cap_bytes": 1.5}, "cap_bytes=1.5 must be"),
        ({"id": "a", "config": {}, "alloc_conf": 3}, "alloc_conf=3 must be a string"),
        ({"id": "a", "config": {}, "function": 3}, "function=3 must be a string"),
        ({"id": "a", "config": {}, "with": {"n": 3}}, "with is for the arguments of a function"),
        ({"id": "a", "config": {}, "function": "m:f", "with": [1]}, "with=[1] must be an object"),
        (
            {"id": "a", "config": {}, "function": "m:f", "with": {"n": [1]}},
            "with.n=[1] must be a number, a string, true, false or null",
        ),
    ],
)
def test_a_wrong_line_is_named_with_its_number(tmp_path: Path, row: Any, sentence: str) -> None:
    """One sentence for each thing that is wrong."""
    with pytest.raises(InputError) as caught:
        read_cases(written(tmp_path / "cases.jsonl", row))
    assert sentence in str(caught.value)


def test_every_wrong_line_is_named_at_once(tmp_path: Path) -> None:
    """Not JSON, and a name that is there twice."""
    path = tmp_path / "cases.jsonl"
    path.write_text('{"id": "a", "config": {}}\nnonsense\n{"id": "a", "config": {}}\n')
    with pytest.raises(InputError) as caught:
        read_cases(path)
    assert len(caught.value.problems) == 2


def test_a_file_without_a_case_is_refused(tmp_path: Path) -> None:
    """Empty or missing."""
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="there is no case in it"):
        read_cases(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="no such file"):
        read_cases(tmp_path / "missing.jsonl")


def test_names_that_are_taken_are_numbered() -> None:
    """The first name that is free."""
    assert fresh_id("run", []) == "run"
    assert fresh_id("run", ["run", "run-2"]) == "run-3"


@pytest.mark.parametrize("bounds", [[2, 1], [1], 5, [1.5, 2], [True, 2], [0, 2]])
def test_bounds_are_two_caps_in_order(tmp_path: Path, bounds: Any) -> None:
    """Anything else is a sentence."""
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "a", "config": {}, "bounds_bytes": bounds}))
    with pytest.raises(InputError, match="must be two whole numbers of bytes, the lower one first"):
        read_cases(path)
    path.write_text(json.dumps({"id": "a", "config": {}, "bounds_bytes": [1, 2]}))
    assert read_cases(path)[0].bounds_bytes == (1, 2)
