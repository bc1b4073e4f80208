"""The seconds of a step are predicted for the process group that was measured."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.backtest.score import backtest

CONFIG: dict[str, Any] = {
    "model": {"name": "llama2-7b"},
    "training": {"batch_size": 1, "seq_len": 1024},
    "engine": {"type": "fsdp"},
    "hardware": {"gpu": "h200", "num_gpus": 8},
}


def predicted(group: str | None, config: dict[str, Any] = CONFIG) -> float:
    """The predicted seconds of a step."""
    environment = {} if group is None else {"process_group": group}
    measured = {"step_seconds": 1.0}
    row = {"id": "a", "group": "g", "config": config, "measured": measured}
    report = backtest(rows_from([{**row, "environment": environment}]))
    (one,) = report.rows
    assert set(one.metrics) == {"step"}
    return one.metrics["step"].predicted


def test_a_fake_group_has_no_communication() -> None:
    """The real job takes longer than a rank whose collectives move nothing."""
    assert 0.05 < predicted("fake") < predicted("nccl")
    assert predicted("nccl") == predicted(None)


@pytest.mark.parametrize("rank", [0, 8])
def test_a_stage_alone_has_no_bubble(rank: int) -> None:
    """One stage of a pipeline that nobody keeps waiting is faster than the whole."""
    config = {**CONFIG, "engine": {"type": "megatron_lm"}}
    config["training"] = {"batch_size": 1, "seq_len": 1024, "gradient_accumulation_steps": 8}
    config["parallelism"] = {"pipeline_parallel_size": 2}
    config["hardware"] = {"gpu": "h200", "num_gpus": 16}
    row = {"id": "a", "group": "g", "config": config, "rank": rank}
    row |= {"measured": {"step_seconds": 1.0}, "environment": {"process_group": "fake"}}
    (one,) = backtest(rows_from([row])).rows
    assert one.metrics["step"].predicted < predicted("nccl", config)


def test_an_unknown_card_is_refused() -> None:
    """Without a card nothing is known of its speed."""
    config = {**CONFIG, "hardware": {"gpu_memory_gb": 80, "num_gpus": 8}}
    row = {"id": "a", "group": "g", "config": config, "measured": {"step_seconds": 1.0}}
    (refused,) = backtest(rows_from([row])).refused
    assert "hardware.gpu" in refused.why
