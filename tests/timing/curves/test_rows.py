"""Lookups against rows of the wheel that the curves are derived from, and the derivation itself."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from statistics import median

import pytest
from msgspec import json

from gpu_mem_calculator.catalog.curve_files import FOLDER, cards, curve
from gpu_mem_calculator.timing.curves.attention import attention_seconds
from gpu_mem_calculator.timing.curves.matmul import matmul_seconds
from maintenance.curves.page import PAGE, page

from .test_lookups import machine

ROWS = json.decode((Path(__file__).parent / "rows.json").read_bytes())
WHEEL = os.environ.get("GPU_MEM_CALC_CURVES")


def _is_as_stated(errors: list[float], spread: dict[str, float]) -> None:
    """A sample's median and its worst are within what the file states of all rows."""
    sizes = [100 * abs(error) for error in errors]
    within = sum(size <= spread["p90_pct"] for size in sizes)
    assert within >= 0.75 * len(sizes)
    assert median(sizes) <= 2.5 * spread["median_pct"]


@pytest.mark.parametrize("card", cards("matmul"))
def test_products_are_as_measured(card: str) -> None:
    """With the error that the file of the card states."""
    one = machine(card, 1)
    rows = ROWS["matmul"][card]
    assert len(rows) > 20
    errors = [1e6 * matmul_seconds(one, m, n, k) / us - 1 for m, n, k, us in rows]
    _is_as_stated(errors, curve("matmul", card)["curves"]["bf16"]["spread"]["training"])


@pytest.mark.parametrize("card", cards("attention"))
def test_attention_is_as_measured(card: str) -> None:
    """With the error that the file of the card states."""
    one = machine(card, 1)
    same = {"batch": 1, "causal": True, "kernel": "server"}
    rows = ROWS["attention"][card]
    assert len(rows) > 2
    errors = [
        1e6 * attention_seconds(one, heads=h, head_dim=d, queries=s, keys=s, **same) / us - 1
        for d, s, h, us in rows
    ]
    _is_as_stated(errors, curve("attention", card)["spread"])


@pytest.mark.parametrize("kind", ["matmul", "attention", "collectives"])
def test_a_file_states_its_source_and_licence(kind: str) -> None:
    """Every card, too."""
    for card in cards(kind):
        file = curve(kind, card)
        assert file["card"] == card
        assert "aiconfigurator-core 0.12.0" in file["source"]
        assert file["licence"].startswith("Apache-2.0")


def test_the_page_has_the_errors_of_the_files() -> None:
    """`python -m maintenance.curves.page` writes them."""
    text = PAGE.read_text("utf-8")
    assert page(text) == text


@pytest.mark.proof
@pytest.mark.skipif(
    WHEEL is None or importlib.util.find_spec("pyarrow") is None,
    reason="set GPU_MEM_CALC_CURVES to the wheel aiconfigurator-core 0.12.0, and install pyarrow",
)
def test_the_files_follow_from_the_wheel() -> None:
    """Every file, and the rows beside this test."""
    from maintenance.curves.__main__ import SAMPLES, files, samples, text

    wheel = Path(str(WHEEL))
    for path, content in files(wheel):
        assert text(content) == (Path(FOLDER) / path).read_text("utf-8"), path
    assert text(samples(wheel)) == SAMPLES.read_text("utf-8")
