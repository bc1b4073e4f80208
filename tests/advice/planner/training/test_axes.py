"""The axes in the documentation are those of the planner."""

from __future__ import annotations

import runpy
from pathlib import Path

from gpu_mem_calculator.advice.planner.training.axes import KEYS

DOCS = Path(__file__).parents[4] / "docs"


def test_the_page_has_every_axis() -> None:
    """The table of choices is up to date, and each size has a row."""
    text = (DOCS / "planner.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "planner.py"))["page"]() == text
    for key in KEYS.values():
        assert key.removesuffix(".recompute_num_layers") in text
