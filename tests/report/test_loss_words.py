"""The words for losses and Liger's kernels."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.report.headline import loss_words
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({}, []),
        ({"liger": True}, ["Liger's rope, rms_norm, swiglu", "Liger's fused loss"]),
        ({"loss": "cut", "liger": ["rope"]}, ["Liger's rope", "cut cross entropy"]),
        ({"label_smoothing": 0.1}, ["labels smoothed by 0.1"]),
    ],
)
def test_words(training: dict[str, Any], words: list[str]) -> None:
    """Only what is not the framework's own."""
    assert list(loss_words(resolve(read(small_run(training=training)).file).run)) == words
