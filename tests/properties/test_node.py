"""Whatever is drawn: a run that takes more of the host than a node has is never said to fit."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.ledger.units import GIB
from tests.properties.extremes import drawn

LITTLE, MOST = 0.98, 1e12  # of what it takes; GB that can be stated
SAMPLE, ALL = 12, 150  # runs


def _check(run: dict[str, Any]) -> None:
    whole = full_estimate(run, replay=False)
    host = whole.result.host
    if host is None or not host.bytes_per_node:
        return
    has = min(host.bytes_per_node * LITTLE / GIB, MOST)
    short = {**run, "hardware": {**run.get("hardware", {}), "node_memory_gb": has}}
    assert full_estimate(short, replay=False).result.verdict != FITS
    forget()


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_no_drawn_run_fits_that_takes_more_than_a_node_has(seed: int) -> None:
    """A sample."""
    _check(drawn(seed))


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(SAMPLE, ALL))
def test_no_further_drawn_run_fits_that_takes_more_than_a_node_has(seed: int) -> None:
    """The others."""
    _check(drawn(seed))
