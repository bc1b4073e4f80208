"""A plan respects the memory of a node."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import plan
from gpu_mem_calculator.advice.planner.answers.plans import Plans
from gpu_mem_calculator.ledger.units import GIB

pytest.importorskip("numpy")
KEY = "hardware.node_memory_gb"


def planned(**fix: Any) -> Plans:
    """8B in full on one 24 GB card, which offloads its states."""
    asked = {"gpus": 1, "gpu": "4090", "seq_len": 1024, "global_batch": 4}
    return plan("llama3.1-8b", **asked, engine="deepspeed", top=3, fix=fix)


def test_no_plan_takes_more_than_a_node_has() -> None:
    """With less than the least of all plans there is none, and what would be enough is said."""
    least = min(one.host_bytes_per_node for one in planned().plans)
    assert least > 64 * GIB
    short = planned(**{KEY: 64})
    assert not short.plans
    assert any("host RAM than a node has" in one for one in short.limits)
    (needed,) = (one.change[KEY] for one in short.if_nothing_fits if KEY in one.change)
    assert needed > 64
    enough = planned(**{KEY: needed * 1.05})
    assert enough.plans
    assert all(one.host_bytes_per_node <= needed * 1.05 * GIB for one in enough.plans)
