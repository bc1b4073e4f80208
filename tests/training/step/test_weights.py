"""The sizes of the parameters that are trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.models.arch.blocks import Weight
from gpu_mem_calculator.training.step.weights import shorter_side


@pytest.mark.parametrize(
    ("largest", "side"), [((40, 30), 30), ((30, 40), 30), ((4, 20, 30), 20), ((5000,), 0)]
)
def test_the_shorter_side_is_of_the_largest_matrix(largest: tuple[int, ...], side: int) -> None:
    """Of experts in one tensor it is one expert's; a vector has no sides."""
    weights = [
        Weight(name, tuple((str(number), size) for number, size in enumerate(shape)))
        for name, shape in (("table", (10, 10)), ("largest", largest))
    ]
    arch = SimpleNamespace(embedding=weights, runs=(), after_weights=lambda: ())
    run: Any = SimpleNamespace(arch=arch)
    assert shorter_side(run) == side
