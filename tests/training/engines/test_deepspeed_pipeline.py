"""DeepSpeed's pipeline and its ZeRO 3 on one rank: buffers and gradients, each counted once."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import GRAD
from tests.conftest import small_run
from tests.training.engines.test_deepspeed import book

HIDDEN_STATES = 2048 * 2048 * 2  # bytes between stages: tokens, width, bf16


@pytest.mark.parametrize("stage", range(4))
def test_one_buffer_receives_activations_and_gradients(stage: int) -> None:
    """Every stage has one, whichever side it receives from (pipe/engine.py:1284)."""
    made = book(zero_stage=1, pp=4, stage=stage, micro_batches=8)
    (entry,) = (e for e in made.entries if e.name.startswith("received"))
    assert entry.bytes == HIDDEN_STATES


def test_bf16_steps_beside_the_stages_gradients() -> None:
    """BF16_Optimizer makes fp32 gradients of its slice while the stage's own are there."""
    made = book(zero_stage=0, pp=2, micro_batches=4)
    parts = {i.name: made.parts(i)[GRAD] for i in made.instants}
    (wide,) = (e for e in made.entries if e.name == "fp32 gradients")
    (buffer,) = (e for e in made.entries if e.name == "gradient buffer")
    own = parts["optimizer"] - wide.bytes - buffer.bytes
    assert own == pytest.approx(buffer.bytes, rel=1e-4)


def test_zero_3_on_one_gpu_keeps_no_second_copy_of_small_parameters() -> None:
    """One rank's shard is the whole parameter: what is allocated is what the ledger says."""
    run = small_run(
        "deepspeed",
        engine={"zero_stage": 3},
        parallelism={"data_parallel_size": 1},
        hardware={"gpu": "h200", "num_gpus": 1},
    )
    found = full_estimate(run)
    assert not any(e.bytes for e in found.ledger.entries if e.name == "persistent parameters")
    assert found.result.allocated_bytes > 0
