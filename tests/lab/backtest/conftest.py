"""Measured runs that tests make up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import small_run


def measured_row(name: str = "a", group: str = "ddp", **rest: Any) -> dict[str, Any]:
    """A line of a file of measured runs, as plain data."""
    row = {
        "id": name,
        "group": group,
        "config": small_run(gpus=1),
        "rank": 0,
        "measured": {"allocated_bytes": 10**9},
    }
    return {**row, **rest}


@pytest.fixture
def row() -> dict[str, Any]:
    """One measured run that a test may change."""
    return measured_row()
