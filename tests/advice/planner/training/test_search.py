"""The search: arrays give what single set-ups give, and its rules are those of the engines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.memory import highest_stage
from gpu_mem_calculator.advice.planner.training.search import at_sizes, evaluate
from gpu_mem_calculator.advice.planner.training.space import structures
from gpu_mem_calculator.advice.planner.training.structures import Structure
from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.timing.training.step import step_seconds

H100 = "h100-80gb-sxm"


def question(model: str = "llama3.1-8b", gpus: int = 64, batch: int = 256) -> PlanQuestion:
    """A question about Megatron-LM."""
    return PlanQuestion(
        model={"name": model},
        hardware={"gpu": H100, "num_gpus": gpus},
        seq_len=8192,
        global_batch=batch,
        engines=("megatron_lm",),
    )


def some_structures(asked: PlanQuestion, step: int) -> Iterator[Structure]:
    """Every `step`-th structure of a question."""
    return islice(structures(asked), 0, None, step)


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "step"),
    [("llama3.1-8b", 64, 256, 23), ("mixtral-8x7b", 64, 256, 43), ("llama3.1-405b", 512, 256, 31)],
)
def test_arrays_give_what_single_set_ups_give(model: str, gpus: int, batch: int, step: int) -> None:
    """Bytes and seconds are equal to the last bit, and so is what the engine accepts."""
    random = np.random.default_rng(7)
    for structure in some_structures(question(model, gpus, batch), step):
        arrays = evaluate(structure, batch, {})
        machine = machine_of(structure.resolved.hardware)
        count = len(structure.pipes) * len(structure.ranks)
        for place in random.choice(count, 25):
            pipe, rank = divmod(int(place), len(structure.ranks))
            resolved = at_sizes(structure, structure.sizes(pipe, rank), batch)
            assert bool(arrays.valid[pipe, rank]) == (resolved is not None)
            if resolved is not None:
                assert arrays.allocated[pipe, rank] == highest_stage(resolved)
                seconds = step_seconds(resolved.run, structure.engine, machine).estimate
                assert float(arrays.seconds[pipe, rank]) == float(seconds)
