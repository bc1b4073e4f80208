"""Activation functions: the names that a run file may have are those that are recorded."""

from __future__ import annotations

from gpu_mem_calculator.pytorch.modelling.huggingface.activation import COMPOSED
from gpu_mem_calculator.pytorch.modelling.huggingface.activation_names import COMPOSED_NAMES


def test_every_name_of_several_kernels_is_recorded() -> None:
    """The names are told without the code that records."""
    assert tuple(COMPOSED) == COMPOSED_NAMES
