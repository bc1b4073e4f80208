"""Sizes: which parameter count a text means."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.find_model.model_size import _count, sized_model


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7 * 10**9),
        ("0.5", 5 * 10**8),
        ("100000", 10**14),
        ("100001", 100_001),
        ("350M", 350 * 10**6),
        ("2k", 2000),
        ("7e9", 7 * 10**9),
        ("7..", 0),
    ],
)
def test_a_plain_number_up_to_100000_is_billions(text: str, size: int) -> None:
    """A larger one is a count."""
    assert _count(text) == size


@pytest.mark.parametrize("name", ["llama2-7b", "7-b", "b", ""])
def test_a_name_is_no_size(name: str) -> None:
    """It is looked up elsewhere."""
    assert sized_model(name) is None
