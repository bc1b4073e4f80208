"""A published parameter count scales every parameter, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import ACT
from gpu_mem_calculator.models.arch.scaling import scaled
from gpu_mem_calculator.models.families import read_config
from tests.conftest import ROOT, SMALL_LLAMA, small_run
from tests.properties.test_megatron_stream import highest

ARCH = read_config(SMALL_LLAMA)
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": small_run("pytorch_ddp"),
    "zero0": small_run("deepspeed", engine={"zero_stage": 0}),
    "zero1": small_run("deepspeed", engine={"zero_stage": 1}),
    "zero2": small_run("deepspeed", engine={"zero_stage": 2}),
    "zero3": small_run("deepspeed", engine={"zero_stage": 3}),
    "zero3-lora": small_run("deepspeed", engine={"zero_stage": 3}, training={"lora": {}}),
    "fsdp": small_run("fsdp", training={"gradient_accumulation_steps": 2}),
    "nf4": small_run("pytorch_ddp", training={"lora": {}, "quantization": "nf4"}),
    "megatron": small_run("megatron_lm", engine={"transformer_implementation": "local"}),
    "generate": {"model": {"config": SMALL_LLAMA}, "inference": {"engine": "transformers"}},
}


def counted(run: dict[str, Any], factor: float) -> dict[str, Any]:
    """The run with the model's own parameter count times `factor`."""
    return {**run, "model": {**run["model"], "num_parameters": int(ARCH.num_parameters * factor)}}


def test_each_parameter_is_in_proportion() -> None:
    """Twice as many parameters are twice as many elements of each."""
    twice = scaled(ARCH, 2 * ARCH.num_parameters)
    assert [w.numel for w in twice.weights()] == [2 * w.numel for w in ARCH.weights()]
    assert (twice.num_parameters, twice.own_parameters) == (
        2 * ARCH.num_parameters,
        ARCH.num_parameters,
    )


def test_equal_layers_stay_one_object() -> None:
    """So results cached for one layer serve all that are equal."""
    arch = scaled(ARCH, ARCH.num_parameters + 1000)
    assert len({id(layer) for layer in arch.layers}) == len({id(layer) for layer in ARCH.layers})


def test_no_count_is_the_model_itself() -> None:
    """A model without a published count is not changed."""
    assert scaled(ARCH, None) is ARCH


@pytest.mark.parametrize("factor", [0.5, 1.04, 3])
@pytest.mark.parametrize("name", ENGINES)
def test_ledger_and_stream_have_one_scale(name: str, factor: float) -> None:
    """The tensors of the replay add up to the ledger's peak, so that blocks only add to it."""
    estimate = full_estimate(counted(ENGINES[name], factor))
    assert estimate.replayed is not None
    (blocks,) = (e for e in estimate.ledger.entries if e.name == "blocks larger than their tensors")
    peak = estimate.result.allocated_bytes - blocks.bytes
    assert blocks.bytes >= 0
    assert highest(estimate.replayed.asked.usual) == pytest.approx(peak, abs=8 * ARCH.num_weights)


def test_activations_are_the_architectures_own() -> None:
    """A count changes no tensor between the layers."""

    def saved(run: dict[str, Any]) -> dict[str, int]:
        entries = full_estimate(run, replay=False).ledger.entries
        return {e.name: int(e.bytes) for e in entries if e.kind == ACT and "kept" in e.name}

    run = small_run("pytorch_ddp", training={"precision": "fp32"})
    usual = saved(run)
    assert usual
    assert saved(counted(run, 2)) == usual


def test_the_sample_with_a_published_count_has_no_negative_row() -> None:
    """Llama 2 7B counted as 7 B: every entry at every instant is 0 or more."""
    ledger = full_estimate(str(ROOT / "configs" / "llama2_7b_deepspeed.json")).ledger
    assert min(int(entry.bytes) for entry in ledger.entries) >= 0
