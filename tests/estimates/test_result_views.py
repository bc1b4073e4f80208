"""A result printed in a console; `tests/report/test_notebook.py` has notebooks."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.fit_verdict import WORDS
from gpu_mem_calculator.estimates.result import MemoryResult

RUNS = {
    "fits": estimate({"model": {"name": "gpt2"}}),
    "does not fit": estimate({"model": {"name": "llama2-7b"}}),
    "server": estimate(
        {
            "model": {"name": "llama3.1-8b"},
            "inference": {"engine": "vllm"},
            "hardware": {"gpu": "h100-80gb-sxm"},
        }
    ),
}


@pytest.mark.parametrize("result", RUNS.values(), ids=RUNS)
def test_print_is_short_and_has_the_verdict(result: MemoryResult) -> None:
    """A handful of lines, the verdict first."""
    lines = str(result).splitlines()
    assert 2 <= len(lines) <= 5
    assert lines[0].startswith(f"{WORDS[result.verdict]}: ")
    assert lines[-1] == result.summary
    assert max(map(len, lines)) <= 150


@pytest.mark.parametrize("result", RUNS.values(), ids=RUNS)
def test_repr_is_one_line(result: MemoryResult) -> None:
    """With the verdict."""
    assert repr(result).count("\n") == 0
    assert f"verdict={result.verdict!r}" in repr(result)
    assert len(repr(result)) <= 120


def test_where_it_dies_is_printed() -> None:
    """The step and the phase."""
    assert "out of memory in step 1, optimizer" in str(RUNS["does not fit"])
    small = {"hardware": {"gpu": "4090"}, "engine": {"type": "pytorch_ddp"}}
    died = str(estimate({"model": {"name": "llama2-13b"}, **small})).splitlines()[-2]
    assert died == "  out of memory at start-up"
