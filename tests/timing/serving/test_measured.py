"""Public figures against the bound: none may be above it."""

from __future__ import annotations

import runpy
from collections import Counter
from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator.report.shortfall import shortfall
from gpu_mem_calculator.serving import server_names
from gpu_mem_calculator.timing.serving.measured import SHARES
from tests.conftest import ROOT

ESTIMATED = ("estimate", "costs")  # tables of docs/speed_tables.py


@cache
def script() -> dict[str, Any]:
    """docs/speed.py, which compares every figure once."""
    return runpy.run_path(str(ROOT / "docs" / "speed.py"), run_name="speed")


def test_no_figure_is_above_the_bound() -> None:
    """An upper bound that is beaten is wrong."""
    beaten = [(one.share, one.row) for one in script()["compared"]() if one.share >= 1]
    assert beaten == []


def test_figures_that_were_left_out_are_above_it() -> None:
    """That is why they are: no card is so fast."""
    assert all(one.share > 1 for one in script()["left_out"]())


def test_figures_are_many_and_of_every_engine() -> None:
    """Six engines, prompts, one sequence and many; each with its version and source."""
    comparisons = script()["compared"]()
    assert len(comparisons) >= 400
    assert {one.engine for one in comparisons} == set(server_names())
    assert min(Counter(one.regime for one in comparisons).values()) > 100
    assert all(one.row["version"] and one.row["source"] for one in comparisons)


def test_the_page_and_the_table_are_up_to_date() -> None:
    """`python docs/speed.py` would change nothing."""
    made = script()
    quick = [name for name in made["TABLES"] if name not in ESTIMATED]
    assert made["page"](quick) == made["PAGE"].read_text("utf-8")
    assert made["module"]() == made["TABLE"].read_text("utf-8")


@pytest.mark.proof
def test_the_scores_of_the_estimate_are_up_to_date() -> None:
    """Constants from all sources, scores with those of the others: half a minute."""
    made = script()
    assert made["page"](ESTIMATED) == made["PAGE"].read_text("utf-8")
    text = made["TABLE"].read_text("utf-8")
    assert made["estimate_tables"]().module(text) == text


@pytest.mark.parametrize("engine", sorted(SHARES))
def test_reports_say_what_an_engine_reached(engine: str) -> None:
    """Median, range and how many."""
    said = shortfall(engine).replace("\N{NO-BREAK SPACE}", " ")
    for share in SHARES[engine].values():
        spread = f"({100 * share.least:.0f}–{100 * share.most:.0f} %, "
        assert any(f"{spread}{n}{share.count})" in said for n in ("", "n = "))


def test_the_articles_speeds() -> None:
    """Phi-3-mini on an H100 NVL: 163.8 of 514 tokens/s at best, 26.3 ms for what takes 4.5."""
    article = [
        one for one in script()["compared"]() if one.row["config"]["model"]["name"] == "phi-3-mini"
    ]
    assert [round(one.bound) for one in article] == [113689, 514]
    assert [round(one.share, 2) for one in article] == [0.17, 0.32]
