"""A whole trace of a tiny run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.corpus import sampled

from .conftest import tiny_run

pytest.importorskip("torch")

if TYPE_CHECKING:
    from gpu_mem_calculator.lab.trace.run import RunTrace

STEP = ("forward", "backward", "optimizer")

OTHERS = ("adafactor", "adafactor_transformers", "adagrad", "muon", "rmsprop")


def test_the_ledger_adds_up_to_the_peak(traced: RunTrace) -> None:
    """Entries at the highest instant are the allocated bytes, to the byte."""
    assert traced.ledger.peak(phases=STEP) == traced.allocated_bytes
    assert traced.ledger.peak_instant(phases=STEP).name == traced.peak_phase


def test_the_four_numbers_are_in_order(traced: RunTrace) -> None:
    """Allocated fits in needs, needs in reserved, reserved in what the card shows."""
    assert traced.allocated_bytes <= traced.needs_bytes <= traced.reserved_bytes
    assert traced.reserved_bytes < traced.device_bytes


def test_states_are_told_apart(traced: RunTrace) -> None:
    """Adam has two fp32 states for every parameter; gradients are as large as the parameters."""
    last = next(i for i in traced.ledger.instants if i.name == "s2.opt")
    parts = traced.ledger.parts(last)
    tables = 2 * 16 // 2 * 4  # the rotary buffer and its twin, on the parameters' account
    assert parts["optim"] == pytest.approx(2 * parts["param"], rel=0.01)
    assert parts["grad"] == parts["param"] - tables


def test_every_phase_is_marked(traced: RunTrace) -> None:
    """Three steps of one micro-batch, after start-up."""
    steps = [f"s{i}{end}" for i in range(3) for end in (".a0.fwd", ".a0.bwd", ".opt")]
    assert list(traced.phases) == ["model", *steps]


@pytest.mark.parametrize(
    "optimizer",
    sampled(
        [
            {"optimizer": name, "optimizer_implementation": way}
            for name in ("adamw", "adam", "sgd", "sgd_momentum")
            for way in ("foreach", "fused", "forloop")
        ]
        + [{"optimizer": name} for name in OTHERS],
        keep=5,
    ),
    ids=lambda given: "-".join(given.values()),
)
def test_every_torch_optimizer_traces(optimizer: dict[str, str]) -> None:
    """In each of its implementations; states are there after the first step."""
    from gpu_mem_calculator.lab.trace.run import trace

    found = trace(tiny_run(**optimizer), steps=2)
    grown = found.phases["s1.opt"].start_next_bytes - found.phases["model"].start_next_bytes
    assert grown >= (0 if optimizer["optimizer"] == "sgd" else 1)


@pytest.mark.parametrize(
    ("engine", "gpus"),
    sampled(
        [
            ({"type": "pytorch_ddp"}, 8),
            ({"type": "pytorch_ddp", "gradient_as_bucket_view": True}, 8),
            ({"type": "fsdp", "sharding_strategy": "hybrid_shard", "hybrid_shard_size": 4}, 8),
            ({"type": "fsdp", "sharding_strategy": "no_shard"}, 2),
            ({"type": "fsdp"}, 8),
            ({"type": "fsdp", "fsdp_version": 1, "sharding_strategy": "no_shard"}, 2),
            ({"type": "fsdp", "fsdp_version": 1}, 8),
        ],
        keep=2,
    ),
)
def test_every_engine_traces(engine: dict[str, object], gpus: int) -> None:
    """With accumulation, recompute and autocast or FSDP's own policy."""
    from gpu_mem_calculator.lab.trace.run import trace

    run = tiny_run(activation_checkpointing="full", gradient_accumulation_steps=2)
    run |= {"engine": engine, "hardware": {"num_gpus": gpus}}
    found = trace(run, steps=2)
    assert found.ledger.peak(phases=STEP) == found.allocated_bytes
    assert any(kind == "comm" for kind in found.kinds)


def test_a_trace_follows_the_allocators_settings() -> None:
    """Sizes rounded up to powers of two take more."""
    from gpu_mem_calculator.lab.trace.run import trace

    plain, rounded = (
        trace(
            tiny_run(batch_size=64, seq_len=300, pytorch_alloc_conf=conf), steps=1
        ).allocated_bytes
        for conf in ("max_split_size_mb:200", "roundup_power2_divisions:2")
    )
    assert rounded > plain


@pytest.mark.parametrize(
    ("card", "training", "window", "kernel"),
    [
        ("h100-80gb-sxm", {}, None, "cudnn"),
        ("a100-80gb-sxm", {}, None, "flash"),
        ("a100-80gb-sxm", {}, 32, "efficient"),  # a window needs a mask, which flash has not
        ("h100-80gb-sxm", {"precision": "fp32"}, 32, "efficient"),
    ],
)
def test_attention_runs_in_the_cards_kernel(
    card: str, training: dict[str, str], window: int | None, kernel: str
) -> None:
    """Forward and backward, each with the workspace it takes."""
    from gpu_mem_calculator.lab.trace.run import trace

    run = tiny_run(**training)
    model = {**run["model"]["config"], "model_type": "mistral", "sliding_window": window}
    run |= {"model": {"config": model}, "hardware": {"gpu": card}}
    ops = {maker.op for maker in trace(run, steps=1).makers}
    name = f"aten::_scaled_dot_product_{kernel}_attention"
    assert {name, f"{name}_backward", f"{name}_backward workspace"} <= ops
