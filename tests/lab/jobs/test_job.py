"""What every job checks before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.job import NONE, Job, World, run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.conftest import small_run


def job(data: dict[str, Any]) -> Job:
    """A job in a world where nobody listens."""
    file = read(data).file
    world = World(device="cpu", mark=lambda name: None)
    return Job(file=file, resolved=resolve(file), world=world)


def test_an_engine_that_cannot_be_run_says_so() -> None:
    """Megatron with DeepSpeed is estimated only."""
    with pytest.raises(InputError, match="only estimated; it works for deepspeed, fsdp"):
        run(job(small_run("megatron_deepspeed")))


def test_a_count_that_scales_an_estimate_is_refused() -> None:
    """A program has the parameters that it has."""
    data = small_run(gpus=1)
    data["model"] = {**data["model"], "num_parameters": "4M"}
    with pytest.raises(InputError, match="leave it out"):
        run(job(data))


def test_a_generation_is_estimated_only() -> None:
    """Unless a program's own trainer runs it."""
    tokens = {"prompt": 8, "new_tokens": 8}
    with pytest.raises(InputError, match="only estimated; measure a program"):
        run(job(small_run(gpus=1, training={"seq_len": None, "generation": tokens})))


def test_a_world_is_rank_0_without_other_processes_unless_told() -> None:
    """The first rank of three steps, on its own."""
    world = job(small_run(gpus=1)).world
    assert (world.rank, world.steps, world.process_group) == (0, 3, NONE)
