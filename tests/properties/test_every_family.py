"""Every family under every engine: a stream as high as its ledger, or a sentence.

Small models, 64 tokens; `make proof` runs all of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled
from tests.models.families.test_shapes import CASES
from tests.streams import highest, rolled_and_written

STAGES = {"pipeline_parallel_size": 2}
# engine, its options, training, parallelism
WAYS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "ddp": ("pytorch_ddp", {}, {}, {}),
    "ddp-eager": ("pytorch_ddp", {}, {"attention": "eager", "precision": "bf16_pure"}, {}),
    "ddp-full": ("pytorch_ddp", {}, {"activation_checkpointing": "full"}, {}),
    "ddp-lora": ("pytorch_ddp", {}, {"lora": {"r": 4}}, {}),
    "zero0": ("deepspeed", {"zero_stage": 0}, {}, {}),
    "zero1": ("deepspeed", {"zero_stage": 1}, {"gradient_accumulation_steps": 2}, {}),
    "zero1-stages": ("deepspeed", {"zero_stage": 1}, {"gradient_accumulation_steps": 2}, STAGES),
    "zero2": ("deepspeed", {"zero_stage": 2}, {"activation_checkpointing": "full"}, {}),
    "zero3": ("deepspeed", {"zero_stage": 3}, {}, {}),
    "zero3-host": ("deepspeed", {"zero_stage": 3, "offload_param": "cpu"}, {}, {}),
    "zero3-disk": ("deepspeed", {"zero_stage": 3, "offload_optimizer": "nvme"}, {}, {}),
    "fsdp": ("fsdp", {}, {}, {}),
    "fsdp-host": ("fsdp", {"cpu_offload": True}, {"activation_checkpointing": "full"}, {}),
    "megatron": ("megatron_lm", {}, {}, {"tensor_parallel_size": 2}),
    "megatron-stages": ("megatron_lm", {}, {"gradient_accumulation_steps": 4}, STAGES),
    "megatron-deepspeed": ("megatron_deepspeed", {"zero_stage": 1}, {}, {}),
    "megatron-zero3": ("megatron_deepspeed", {"zero_stage": 3}, {}, {}),
}
NAMED = {name: (name, config) for name, config in CASES.items()}


def outcome(config: dict[str, Any], way: str) -> str:
    """`runs`, or the problems of the run; fails where ledger and stream differ."""
    engine, options, training, parallelism = WAYS[way]
    run = {
        "model": {"config": config},
        "training": {"batch_size": 1, "seq_len": 64, **training},
        "engine": {"type": engine, **options},
        "parallelism": parallelism,
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 2},
    }
    try:
        found = resolve(read(run).file)
    except InputError as error:
        return "; ".join(error.problems)
    ledger, stream = rolled_and_written(found)
    assert highest(stream) == int(ledger.peak(phases=STEP)), way
    return "runs"


@pytest.mark.parametrize(("name", "config"), sampled(NAMED, keep=30))
def test_a_family_runs_or_says_why_not(name: str, config: dict[str, Any]) -> None:
    """No engine raises anything but its sentences, and each ledger is as high as its stream."""
    for way in WAYS:
        assert outcome(config, way)


def test_most_families_run_under_most_engines() -> None:
    """Llama runs under all of them, so that a refusal of everything is noticed."""
    assert {outcome(CASES["llama-defaults"], way) for way in WAYS} == {"runs"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("olmo-defaults", "norms without weights"), ("opt-350m", "embedding of another width")],
)
def test_megatron_refuses_what_its_modules_do_not_have(name: str, words: str) -> None:
    """Its norms have weights, and its embedding is as wide as its layers."""
    for way in ("megatron", "megatron-deepspeed"):
        assert words in outcome(CASES[name], way)
