"""Megatron-LM where it interleaves, starts up, and steps: what the measured runs showed."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.training.engines.megatron_lm.engine import ENGINE
from gpu_mem_calculator.training.engines.megatron_lm.model_inputs import idle_chunks
from gpu_mem_calculator.training.engines.megatron_lm.states import stage_shard
from gpu_mem_calculator.training.step.pipeline import pipeline_stage
from tests.training.engines.test_megatron import EXPERTS, UNFUSED, arch, named, run

STEPS = ("forward", "backward", "optimizer")
ONE = {"num_layers": 16, "hidden_size": 2048, "intermediate_size": 8192}
SHARDED = UNFUSED | {"distributed_optimizer": True}
WOVEN = {
    # run, options, allocated, at start-up: one H200, megatron-core 0.19.2, torch 2.11
    "pp4-vp2-stage0": (
        {"dp": 2, "pp": 4, "virtual_stages": 2, "recompute": "selective"},
        SHARDED,
        12_296_267_776,
        4_073_784_832,
    ),
    "pp4-vp4-stage3": (
        {"dp": 2, "pp": 4, "virtual_stages": 4, "stage": 3, "recompute": "full"},
        UNFUSED,
        11_967_740_928,
        5_586_926_080,
    ),
}


def make_run(options: dict[str, Any] = UNFUSED, **rest: Any) -> Run:
    """A run of Llama 1B with eight micro-batches."""
    values = {"seq": 2048, "micro_batches": 8, "implementation": "foreach"} | rest
    return run(arch(**ONE), options=options, **values)


def at(ledger: Ledger, instant: str) -> int:
    """Bytes at an instant."""
    return int(ledger.heights()[instant])


@pytest.mark.parametrize("row", WOVEN)
def test_interleaved_run(row: str) -> None:
    """Measured peaks of interleaved stages are met within a tenth of a percent."""
    settings, options, allocated, startup = WOVEN[row]
    ledger = ENGINE.ledger(make_run(options, **settings))
    assert int(ledger.peak(phases=STEPS)) == pytest.approx(allocated, rel=1e-3)
    assert int(ledger.peak(phases=("startup",))) == pytest.approx(startup, rel=1e-3)


@pytest.mark.parametrize(
    ("stage", "chunks", "batches", "expected"),
    [(3, 4, 8, 2), (3, 2, 8, 1), (0, 2, 8, 0), (3, 4, 4, 0), (3, 1, 8, 0)],
)
def test_idle_chunks(stage: int, chunks: int, batches: int, expected: int) -> None:
    """The stage that runs least ahead has most chunks that wait; a single group has none."""
    case = make_run(pp=4, stage=stage, virtual_stages=chunks, micro_batches=batches)
    assert idle_chunks(case) == expected


def test_decay_of_sgd_needs_a_copy() -> None:
    """torch's SGD adds weight decay to a copy of the gradients, of matrices alone."""
    case = make_run(optimizer="sgd_momentum")
    shard = stage_shard(case, pipeline_stage(case))
    temporaries = named(ENGINE.ledger(case), "sgd_momentum foreach temporaries")
    assert temporaries == 4 * (shard.total - shard.vectors)


def test_experts_step_after_dense_weights() -> None:
    """Temporaries of the experts' step are made when those of the dense weights are freed."""
    case = run(arch(**EXPERTS), options=UNFUSED, implementation="foreach", dp=8, ep=8)
    shard = stage_shard(case, pipeline_stage(case))
    temporaries = {e.name: e for e in ENGINE.ledger(case).entries if "temporaries" in e.name}
    dense, experts = (
        temporaries[f"adamw foreach temporaries{title}"] for title in ("", " of the experts")
    )
    assert (dense.bytes, experts.bytes) == (4 * (shard.dense - shard.vectors), 4 * shard.experts)
    assert not set(dense.live) & set(experts.live)


def test_chunks_move_one_by_one() -> None:
    """Parameters exist twice for one chunk at a time."""
    one, two = (
        ENGINE.ledger(make_run(SHARDED, dp=2, pp=4, stage=1, virtual_stages=n)) for n in (1, 2)
    )
    total = named(one, "parameters")
    assert at(one, "startup.ddp") == 4 * total
    assert at(two, "startup.ddp") == 3 * total + total // 2


def test_dispatcher_holds_a_recomputed_graph() -> None:
    """Recomputed layers with experts keep their input and its gradient."""
    case = run(arch(**EXPERTS), options=UNFUSED, recompute="full")
    entry = next(e for e in ENGINE.ledger(case).entries if "dispatcher" in e.name)
    assert int(entry.bytes) == 2 * 2 * 4096 * 4096
    assert (int(entry.at("backward.0.last")), int(entry.at("optimizer"))) == (0, 32 * entry.bytes)
