"""Which part of a recorded module a parameter belongs to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.trace.module_parts import _weights
from gpu_mem_calculator.lab.trace.recorded_run import BACK, STEP, TraceMark


@pytest.mark.parametrize(
    ("reader", "owners"),
    [
        ("norm", {1: ["norm.weight"], 2: []}),  # its own: where the module is called
        ("head", {1: [], 2: ["norm.weight"]}),  # from elsewhere: where its gradient arrives
    ],
)
def test_a_parameter_belongs_to_one_part(reader: str, owners: dict[int, list[str]]) -> None:
    """Part 1 calls the module that reads it, part 2 gets its gradient."""
    run: Any = SimpleNamespace(
        owned={reader: {"norm.weight": (8,)}},
        arrived={"norm.weight": 0},
        readers={"norm.weight": reader},
        unused={},
    )
    pieces: Any = {
        (STEP, 1): [TraceMark(STEP, "in", reader)],
        (BACK, 1): [],
        (STEP, 2): [],
        (BACK, 2): [TraceMark(BACK, "weight", "norm.weight")],
    }
    assert {n: [name for name, _ in _weights(run, pieces, n)] for n in (1, 2)} == owners
