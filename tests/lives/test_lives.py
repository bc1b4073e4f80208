"""The drawn rows are what `draw` draws, and every id stands once."""

from __future__ import annotations

import json

import pytest

from .draw import HERE, drawn
from .models import Row


@pytest.mark.parametrize(("file", "rows"), list(drawn()))
def test_drawn_rows(file: str, rows: list[Row]) -> None:
    """Nothing was changed by hand."""
    assert [json.loads(line) for line in (HERE / file).read_text().splitlines()] == rows
    assert len({row["id"] for row in rows}) == len(rows)
