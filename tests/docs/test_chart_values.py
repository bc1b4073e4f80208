"""deploy/README.md shows every value of the chart as it is."""

from __future__ import annotations

import runpy

from tests.conftest import ROOT


def test_the_values_are_up_to_date() -> None:
    """`python docs/chart_values.py` would change nothing."""
    made = runpy.run_path(str(ROOT / "docs" / "chart_values.py"), run_name="chart_values")["page"]()
    assert made == (ROOT / "docs" / "deploy" / "README.md").read_text("utf-8")
