"""Numbers of a set-up, as people write them around what a program printed."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.tools.logs.figure import Figure
from gpu_mem_calculator.tools.logs.read import is_printed, read_log
from gpu_mem_calculator.tools.logs.set_up import set_up, table

GIB = 2**30


def _read(text: str) -> dict[str, float | str]:
    return {
        name: one.value if isinstance(one, Figure) else one
        for _, figures in set_up(text)
        for name, one in figures.items()
    }


@pytest.mark.parametrize("row", table()["form"], ids=lambda row: row["example"]["text"])
def test_each_form_reads_its_example(row: dict[str, Any]) -> None:
    """With the name that the text gives each number."""
    assert _read(row["example"]["text"]) == row["example"]["figures"]


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("RTX 4090 (24 GB)", {"rtx_4090_bytes": 24 * GIB}),
        ("VRAM 22.5/24 GB", {"vram_bytes": 22.5 * GIB, "vram_2_bytes": 24 * GIB}),
        ("| card | cache |\n|---|--:|\n| A | 3 GiB |", {"cache_bytes": 3 * GIB}),
        ("vllm 0.8.5, at 10:31:02, line 14 of main.py:120", {}),
        ("it took 12 minutes and 3 tries", {}),
        ("number of parameters: 108.24M", {"parameters": 108_240_000}),
        ("params 400K, memory 12M", {"params": 400_000, "memory_bytes": 12 * 2**20}),
        ("a model of 1.5M-parameter", {"parameters": 1_500_000}),
        ("parameters take 30 GB", {"take_bytes": 30 * GIB}),
    ],
)
def test_a_number_is_read_with_what_it_is_of(text: str, figures: dict[str, float]) -> None:
    """By the noun beside it, or the head of its column; a number without one is not read."""
    assert _read(text) == figures


def test_what_a_row_reads_is_not_read_again() -> None:
    """Nor does a configuration's number make it what a program printed."""
    [line] = read_log("step 3 loss 2.0312 on 8 GPUs").set_up
    assert line.figures.keys() == {"gpu"}
    assert not is_printed("max_memory: 24GB")
