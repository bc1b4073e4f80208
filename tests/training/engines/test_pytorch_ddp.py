"""One GPU and DDP: everything on every rank."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import measured_runs, small_run


@pytest.mark.parametrize("row", ["ddp-llama3.2-1b", "ddp-llama3.2-1b-view"])
def test_every_phase_of_the_measured_ddp_runs(row: str) -> None:
    """Start-up, forward, backward and optimizer peaks within 0.1 % of an H200."""
    measured = next(r for r in measured_runs() if r["id"] == row)
    ledger = full_estimate(measured["config"]).ledger
    phases = measured["phases"]
    for phase, name in (
        ("startup", "model"),
        ("forward", "s2.a0.fwd"),
        ("backward", "s2.a0.bwd"),
        ("optimizer", "s2.opt"),
    ):
        assert ledger.peak(phases=(phase,)) == pytest.approx(phases[name]["peak_bytes"], rel=1e-3)


def test_bucket_views_hold_the_gradients() -> None:
    """With `gradient_as_bucket_view` a gradient lives in its bucket only."""
    plain = full_estimate(small_run()).ledger
    views = full_estimate(small_run(engine={"gradient_as_bucket_view": True})).ledger
    assert views.peak(phases=("optimizer",)) < plain.peak(phases=("optimizer",))


def test_bucket_views_need_a_second_gpu() -> None:
    """One GPU has no buckets."""
    with pytest.raises(InputError, match="needs more than one GPU"):
        estimate(small_run(gpus=1, engine={"gradient_as_bucket_view": True}))


def test_a_reentrant_checkpoint_holds_its_output() -> None:
    """One more tensor of the layer's width in backward."""
    full = {"activation_checkpointing": "full"}
    plain = full_estimate(small_run(training=full)).ledger
    again = full_estimate(small_run(training={**full, "checkpoint_reentrant": True})).ledger
    there = next(i for i in plain.instants if i.name == "backward.0.last")
    assert again.at(there) - plain.at(there) in (0, 2 * 512 * 256 * 4)


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"checkpoint_reentrant": True}, "needs activation_checkpointing 'full'"),
        ({"upcast_unquantized": True}, "applies to a quantized base only"),
        ({"autocast": True, "precision": "fp32"}, "is 'bf16_mixed'; set that instead"),
        ({"attention": "flash_attention_2", "precision": "fp32"}, "has no fp32 kernel"),
    ],
)
def test_a_key_that_changes_nothing_is_refused(training: dict[str, object], sentence: str) -> None:
    """A key without an effect is refused, not ignored."""
    with pytest.raises(InputError, match=sentence):
        estimate(small_run(training=training))


def test_fp32_attention_with_grouped_heads_takes_the_math_path() -> None:
    """No fused kernel has both: the s × s maps are kept in full."""
    fp32 = {"precision": "fp32"}
    grouped = estimate(small_run(training=fp32))
    config = small_run()["model"]["config"]
    every = small_run(training=fp32, model={"config": {**config, "num_key_value_heads": 8}})
    assert grouped.allocated_bytes > estimate(every).allocated_bytes


def entry_bytes(name: str, **changes: Any) -> int:
    """Bytes of the entry with this name."""
    ledger = full_estimate(small_run(**changes), replay=False).ledger
    return next(int(entry.bytes) for entry in ledger.entries if entry.name == name)


def test_gradient_buckets_need_a_second_gpu() -> None:
    """Buckets are as large as all gradients; the reducer of one rank has none."""
    assert entry_bytes("gradient buckets") == entry_bytes("parameters")
    assert entry_bytes("gradient buckets", gpus=1) == 0


@pytest.mark.parametrize(
    ("precision", "width"), [("fp32", 4), ("bf16_mixed", 4), ("fp16_mixed", 4), ("bf16_pure", 2)]
)
def test_weights_and_inputs_of_layers_have_the_width_of_the_precision(
    precision: str, width: int
) -> None:
    """Autocast leaves both in 32 bits."""
    training = {"precision": precision, "activation_checkpointing": "full"}
    assert entry_bytes("parameters", training=training) == 3_426_560 * width
    inputs = entry_bytes("dense layers: checkpointed inputs", training=training)
    assert inputs == 2 * 512 * 256 * width
