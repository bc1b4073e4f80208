"""Changes that are tried: which a run has, and how much they are held back."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.advice.training.change_candidates import further_savings, savings
from gpu_mem_calculator.advice.training.last_resorts import offload_on_one_gpu
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.keys.keys import defaults
from tests.conftest import small_run


def estimated(kind: str, gpus: int, **sections: Any) -> Any:
    """A small run."""
    return full_estimate(small_run(kind, gpus, **sections))


def titles(found: Any) -> list[str]:
    """The names of changes."""
    return [one.title for one in found]


def test_model_parallelism_is_held_back_as_much_as_communication_is() -> None:
    """Tensor parallelism comes after what costs less."""
    found = {one.title: one.weight for one in savings(estimated("megatron_lm", 8))}
    assert found["tp 2, sequence parallel"] == 2


@pytest.mark.parametrize(
    ("kind", "gpus", "offered"),
    [("megatron_lm", 8, True), ("megatron_lm", 1, False), ("pytorch_ddp", 8, False)],
)
def test_context_parallelism_halves_the_data_parallel_ranks(
    kind: str, gpus: int, offered: bool
) -> None:
    """Of a framework that has it, where there are two."""
    assert ("cp 2" in titles(further_savings(estimated(kind, gpus)))) == offered


@pytest.mark.parametrize(
    ("kind", "gpus", "offered"), [("pytorch_ddp", 1, 1), ("pytorch_ddp", 2, 0), ("fsdp", 1, 0)]
)
def test_states_go_to_the_host_of_one_gpu(kind: str, gpus: int, offered: int) -> None:
    """Of DDP alone: others shard or offload by themselves."""
    assert len(list(offload_on_one_gpu(estimated(kind, gpus)))) == offered


def test_a_rank_has_one_stage() -> None:
    """Where no virtual stages are asked for."""
    assert defaults()["parallelism.virtual_pipeline_size"] == 1
