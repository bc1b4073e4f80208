"""Host RAM that a run needs is on the first screen, and in the line of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.estimates.verdict_words import verdict_line


def _offloaded(model: str) -> dict[str, Any]:
    engine = {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"}
    hardware = {"gpu": "a100-80gb-sxm", "num_gpus": 8}
    return {"model": {"name": model}, "engine": engine, "hardware": hardware}


def test_terabytes_of_host_memory_are_in_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    """As an assumption that could turn the verdict; a few GiB are not worth a word."""
    result = estimate(_offloaded("llama3.1-70b"), replay=False)
    assert result.host_bytes_per_node > 2**40
    assert "GiB of host RAM a node" in verdict_line(result)
    assert "host RAM" not in verdict_line(estimate(_offloaded("gpt2"), replay=False))
    words = ["quick", "llama3.1-8b", "--gpus", "8", "--zero", "3", "--offload", "--gpu", "h100-sxm"]
    assert main(words) == 0
    first = " ".join(capsys.readouterr().out.split("█")[0].split())
    assert "GiB of host RAM a node" in first


def test_a_plan_says_its_host_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """In its set-up, and in its row."""
    pytest.importorskip("numpy")
    words = ["plan", "llama3.2-1b", "--gpus", "1", "--gpu", "4090", "--global-batch", "8"]
    fixed = ["--engine", "deepspeed", "--fix", "engine.offload_optimizer=cpu", "--seq-len", "1k"]
    assert main([*words, *fixed]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GiB of host RAM a node" in shown
    assert "offload:" in shown
