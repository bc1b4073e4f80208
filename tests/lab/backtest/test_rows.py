"""Reading measured runs: what reads, and the sentence for each thing that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.rows import (
    parse_rows,
    read_rows,
    row_problems,
    rows_from,
    unknown_notes,
)
from gpu_mem_calculator.lab.backtest.score import as_data, backtest
from gpu_mem_calculator.report.backtest import text_score
from gpu_mem_calculator.runfile.text.errors import InputError

from .conftest import measured_row


def problems(text: str) -> list[str]:
    """What is wrong with a text."""
    with pytest.raises(InputError) as caught:
        parse_rows(text, "runs.jsonl")
    return caught.value.problems


def test_a_row_keeps_what_is_scored(row: dict[str, Any]) -> None:
    """Id, group, rank, figures, phases and process group are read; nulls are left out."""
    row |= {"rank": 3, "environment": {"process_group": "nccl, 1 rank", "torch": "2.11"}}
    timed = {"step_seconds": 0.5, "step_seconds_all": [0.4, 0.5, 0.7]}
    row["measured"] |= {"reserved_bytes": None, **timed}
    row["phases"] = {"s0.a0.fwd": {"peak_bytes": 7, "start_next_bytes": 1}}
    (read,) = rows_from([row])
    assert (read.id, read.group, read.rank, read.process_group) == ("a", "ddp", 3, "nccl, 1 rank")
    assert read.measured == {"allocated_bytes": 10**9, **timed}
    assert read.phases == {"s0.a0.fwd": 7}


@pytest.mark.parametrize(
    ("measured", "phases", "scored"),
    [
        ({}, {}, True),
        ({}, {"model": {"peak_bytes": 1}}, True),
        ({}, {"s2.opt": {"peak_bytes": 1}}, False),
        ({"step_peaks_bytes": [1, 2]}, {}, False),
        ({"step_seconds_all": [0.5]}, {"s2.opt": {"peak_bytes": 1}}, True),
    ],
)
def test_a_step_with_probes_is_not_scored(
    row: dict[str, Any], measured: dict[str, Any], phases: dict[str, Any], scored: bool
) -> None:
    """Probes between phases take time, unless the row says that further steps had none."""
    row["measured"] |= {"step_seconds": 0.5, **measured}
    row["phases"] = phases
    assert ("step_seconds" in rows_from([row])[0].measured) is scored


def test_a_serving_row_without_a_rank_reads(row: dict[str, Any]) -> None:
    """Serving rows have no rank and other figures."""
    del row["rank"]
    row["measured"] = {"kv_tokens": 20480, "kv_pool_bytes": 0, "fits": False}
    assert rows_from([row])[0].rank == 0


def test_empty_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    """Files of other editors read."""
    path = tmp_path / "runs.jsonl"
    path.write_text("\n" + json.dumps(measured_row()) + "\r\n\n", encoding="utf-8-sig")
    assert [row.id for row in read_rows(path)] == ["a"]


def test_keys_of_ones_own_are_allowed(row: dict[str, Any]) -> None:
    """Unknown keys that resemble none are accepted as notes."""
    assert not list(row_problems({**row, "comment": "on a Tuesday"}))


def test_figures_of_ones_own_are_kept_and_named(row: dict[str, Any]) -> None:
    """Keys of `measured` that are not known stay in the row; a note names each, with the nearest
    known one.
    """
    row["measured"] |= {"temperature": 71.5, "alocated_bytes": 1, "host": {"start": {"VmRSS": 1}}}
    (read,) = rows_from([row])
    assert read.measured["temperature"] == 71.5
    assert read.measured["host"] == {"start": {"VmRSS": 1}}
    notes = list(unknown_notes([read, read]))
    assert notes[0] == "measured.temperature (2 rows) is not a known key and is not scored"
    assert notes[1].endswith("is not scored; did you mean 'allocated_bytes'?")
    report = backtest([read])
    assert len(as_data(report)["notes"]) == len(report.notes) == 3
    text = " ".join(str(one) for one in text_score(report, "runs.jsonl"))
    assert "measured.temperature (1 row)" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": None}, "'id' is missing; add \"my-run-1\""),
        ({"group": 3}, "group=3 must be a string"),
        ({"config": "run.json"}, "config='run.json' must be an object"),
        ({"rank": -1}, "rank=-1 must be a whole number, 0 or more"),
        ({"rank": True}, "rank=true must be a whole number, 0 or more"),
        ({"enviroment": {}}, "'enviroment' is not a known key; did you mean 'environment'?"),
        (
            {"measured": {"allocated_bytes": 1.5}},
            "measured.allocated_bytes=1.5 must be a whole number of bytes, 0 or more",
        ),
        (
            {"measured": {"kv_tokens": "9"}},
            "measured.kv_tokens='9' must be a whole number, 0 or more",
        ),
        ({"measured": {"fits": 1}}, "measured.fits=1 must be true or false"),
        (
            {"measured": {"step_seconds": "1"}},
            "measured.step_seconds='1' must be a number, 0 or more",
        ),
        (
            {"phases": {"s0.opt": {}}},
            "phases.s0.opt must be an object with peak_bytes, a whole number of bytes",
        ),
    ],
)
def test_a_bad_value_is_a_sentence(row: dict[str, Any], change: dict[str, Any], said: str) -> None:
    """The value, the rule, and the nearest fix."""
    assert list(row_problems({**row, **change})) == [said]


def test_a_process_group_must_be_a_known_one(row: dict[str, Any]) -> None:
    """It decides what nvidia-smi is held against."""
    (said,) = row_problems({**row, "environment": {"process_group": "fakes"}})
    assert said.endswith("did you mean 'fake'?")


def test_every_bad_line_is_named() -> None:
    """All problems at once, each with its line."""
    text = "\n".join(["{", json.dumps(measured_row()), "7", json.dumps(measured_row())])
    said = problems(text)
    assert [one.partition(": ")[0] for one in said] == [f"runs.jsonl line {n}" for n in (1, 3, 4)]
    assert said[2].endswith("id 'a' is that of line 2; give it another")


def test_a_run_that_failed_may_be_tried_again(row: dict[str, Any]) -> None:
    """The line that came later counts, and a second success is refused."""
    dead = {**row, "measured": {}, "failed": "out of memory after model"}
    (read,) = rows_from([dead, row])
    assert (read.failed, read.measured) == ("", row["measured"])
    assert len(problems("\n".join(map(json.dumps, [dead, row, row])))) == 1


def test_a_json_list_is_told_apart() -> None:
    """A list, or one object over many lines, is one sentence instead of one a line."""
    text = json.dumps([measured_row(), measured_row("b")], indent=1)
    assert problems(text) == [
        "runs.jsonl: this is one JSON value over several lines or a list; "
        "write each run as an object on a line of its own"
    ]


def test_an_empty_file_says_so() -> None:
    """A file without runs is refused."""
    assert problems("\n\n")[0].startswith("runs.jsonl: there is no run in it")


def test_many_problems_are_cut() -> None:
    """Twenty sentences, then how many more."""
    said = problems("{\n" * 30)
    assert len(said) == 21
    assert said[-1] == "there are more problems; correct these first"


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    """Missing, a folder, or not text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xff\x00\x80")
    for name in ("missing", ".", "bytes"):
        with pytest.raises(InputError, match=r"no such file|cannot be read|not UTF-8"):
            read_rows(tmp_path / name)
