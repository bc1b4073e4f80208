"""The rows of the table of parts."""

from __future__ import annotations

from gpu_mem_calculator.estimates.verdict_words import total_bytes
from gpu_mem_calculator.report.parts import MARGIN, parts
from tests.report.test_live import estimated


def test_without_a_replay_there_is_no_margin() -> None:
    """A part without bytes has no row, but for gradients and optimizer states."""
    made = estimated("ddp")
    rows = parts(made)
    assert made.result.margin_bytes is None
    assert MARGIN not in [row.title for row in rows]
    assert all(row.bytes > 0 or row.title in ("gradients", "optimizer states") for row in rows)
    assert sum(row.bytes for row in rows) == total_bytes(made.result)
