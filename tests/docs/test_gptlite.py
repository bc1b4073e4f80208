"""The page of GPT-lite says what its files say, and estimates are as close as it claims."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.docs.test_documents import script

MOST_PCT = 2.0  # that an estimate may be off


@cache
def page() -> dict[str, Any]:
    """docs/gptlite_page.py."""
    return script("gptlite_page")


def rows() -> Any:
    """docs/gptlite_rows.py."""
    return page()["gptlite_rows"]


def rooms() -> dict[str, int | None]:
    """The benchmark's configurations, without running it: it needs torch."""
    tree = ast.parse((ROOT / "examples" / "gptlite" / "bench.py").read_text("utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "ROOMS"
    )
    assert value is not None
    found: dict[str, int | None] = ast.literal_eval(value)
    return found


def test_the_page_and_its_pictures_are_up_to_date() -> None:
    """`python docs/gptlite_page.py` would change nothing."""
    stale = [path.name for path, text in page()["documents"]() if path.read_text("utf-8") != text]
    assert stale == []


def test_every_configuration_is_there() -> None:
    """Each of the benchmark's, in its room."""
    assert {one.name: one.room for one in rows().largests()} == rooms()
    assert [one.name for one in rows().memories()] == list(rooms())


def test_estimates_and_traces_are_within_two_percent() -> None:
    """Of what was measured, for every configuration."""
    far = [
        (one.name, one.off, one.traced_off)
        for one in rows().memories()
        if max(abs(one.off), abs(one.traced_off)) > MOST_PCT
    ]
    assert far == []


def test_every_stage_of_every_pipeline_is_within_two_percent() -> None:
    """As many as were measured."""
    found = list(rows().pipelines())
    assert len(found) == len(rows().rows("measured_pipelines"))
    assert [(one.name, one.worst) for one in found if abs(one.worst) > MOST_PCT] == []


def test_no_trial_contradicts_a_prediction() -> None:
    """Nothing larger trained, and nothing as large or smaller ran out of memory."""
    assert [one.name for one in rows().largests() if one.wrong] == []


def test_the_answer_that_is_shown_is_the_one_that_is_compared() -> None:
    """The command's own output and the row of the table are one figure."""
    (shown,) = re.findall(r"allocated +([\d.]+)", page()["compared"].answer())
    (one,) = (one for one in rows().memories() if one.name == "zero2_bf16")
    assert shown == f"{one.estimated:.2f}"


def test_the_readme_claims_what_the_page_shows() -> None:
    """How far off the first estimates were, those of pipelines, too."""
    tables = page()["tables"]
    (first,) = re.findall(r"at most (\+[\d.]+ %)", tables.changed())
    (today,) = re.findall(r"the estimate is off by at most (\+[\d.]+ %)", tables.close())
    (pipelines,) = re.findall(r"was (\d+ to \d+ %)", tables.before())
    number = len(tables.first_errors())
    readme = (ROOT / "README.md").read_text("utf-8")
    (row,) = (line for line in readme.splitlines() if line.startswith("| [GPT-lite]"))
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2:4] == ["no", str(number)]
    assert (cells[5].split(", ")[1], cells[6].split(", ")[1]) == (first, today)
    assert f"pipelines were {pipelines} too high at first" in readme


def test_the_parameters_of_a_size() -> None:
    """GPT-3 Small has as many as the module has."""
    assert rows().parameters(12) == 86_701_056


@pytest.mark.parametrize(
    ("trained", "failed", "said"),
    [
        ([20], [21], "right"),
        ([20], [], "not too high"),
        ([], [22], "not refuted"),
        ([], [], "not tried"),
        ([20, 21], [22], "wrong"),
        ([19], [20], "wrong"),
    ],
)
def test_what_trials_say(trained: list[int], failed: list[int], said: str) -> None:
    """A prediction is right where it trains and the next does not; wrong where they disagree."""
    one = rows().Largest("any", 24, 20, trained, failed)
    assert said in page()["tables"].verdict(one)


def test_only_memory_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that died of something else, or under another limit, count neither way."""

    def trial(number: int, failed: str, gib: int) -> dict[str, Any]:
        return {
            "group": "any",
            "with": {"number": number},
            "failed": failed,
            "environment": {"cap_bytes": gib * 2**30},
        }

    found = [
        trial(20, "", 24),
        trial(21, "timeout after 600 s", 24),
        trial(22, "out of memory after init", 24),
        trial(23, "", 8),
    ]
    monkeypatch.setattr(rows(), "rows", lambda _: found)
    assert rows().trials("any", 24) == ([20], [22])
    assert rows().trials("any", None) == ([], [])


def test_a_page_without_a_mark_is_refused() -> None:
    """Nothing is left out silently."""
    with pytest.raises(ValueError, match="0 marks 'memory'"):
        page()["page"]("# a page")
