"""Adapters that are made in one dtype and cast to another."""

from __future__ import annotations

from typing import Any

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run
from tests.streams import rolled_and_written


def startup(**lora: Any) -> tuple[int, int]:
    """The peak of start-up, by ledger and by stream."""
    data = small_run(
        "pytorch_ddp", 1, training={"lora": {"r": 8, **lora}, "precision": "bf16_pure"}
    )
    ledger, asked = rolled_and_written(resolve(read(data).file))
    total = peak = 0
    for event in asked.events[: asked.marks[0][0]]:
        total += asked.sizes[event] if event >= 0 else -asked.sizes[~event]
        peak = max(peak, total)
    return int(ledger.peak(phases=["startup"])), peak


def test_all_are_made_before_the_first_is_cast() -> None:
    """As in TRL, for a quantized model."""
    by_ledger, by_stream = startup(adapter_dtype="bf16", initial_dtype="fp32")
    assert by_ledger == by_stream
    assert by_ledger > startup(adapter_dtype="fp32")[0] > startup(adapter_dtype="bf16")[0]


def test_the_same_dtype_is_not_cast() -> None:
    """No copies are made."""
    assert startup(adapter_dtype="bf16", initial_dtype="bf16") == startup(adapter_dtype="bf16")
