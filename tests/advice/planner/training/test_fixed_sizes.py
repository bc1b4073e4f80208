"""A size that is fixed is in every set-up: an engine without it takes no part."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.space import structures

TP = "parallelism.tensor_parallel_size"


@pytest.mark.parametrize(
    ("size", "engines"), [(2, {"megatron_lm"}), (1, {"megatron_lm", "fsdp", "pytorch_ddp"})]
)
def test_engines_without_a_fixed_size_take_no_part(size: int, engines: set[str]) -> None:
    """FSDP and DDP have no tensor parallelism; a size of 1 is theirs, too."""
    question = PlanQuestion(
        model={"name": "gpt2"},
        hardware={"gpu": "h200", "num_gpus": 2},
        seq_len=512,
        global_batch=2,
        engines=("megatron_lm", "fsdp", "pytorch_ddp"),
        fix={TP: size},
    )
    assert {one.engine for one in structures(question)} == engines
