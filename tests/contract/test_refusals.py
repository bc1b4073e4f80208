"""What each engine refuses, as a table: an engine that refuses more, or less, fails here."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engine_names
from tests.conftest import SMALL_LLAMA, small_run

NAMES = engine_names()
DDP, ZERO, FSDP = "pytorch_ddp", "deepspeed", "fsdp"
MEGATRON, MEGATRON_ZERO = "megatron_lm", "megatron_deepspeed"
MEGATRONS = (MEGATRON, MEGATRON_ZERO)
MIXTRAL = {**SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
TRAINING, PARALLELISM = "training", "parallelism"
Sections = dict[str, dict[str, Any]]


def every(engines: tuple[str, ...], *words: str) -> dict[str, tuple[str, ...]]:
    """The same key words for several engines."""
    return dict.fromkeys(engines, words)


def training(**values: Any) -> Sections:
    """Training keys alone."""
    return {TRAINING: values}


def mesh(**values: Any) -> Sections:
    """Parallelism keys alone."""
    return {PARALLELISM: values}


PACKED = {"lora": {"r": 8}, "precision": "bf16_pure", "autocast": True}
TP, PP, CP, EP = (
    f"parallelism.{a}_parallel_size=2" for a in ("tensor", "pipeline", "context", "expert")
)
ZERO_0 = "zero_stage 0 in 16 bits"
NOT_ITS = "is not one"
# A setting, and the engines that refuse it: key words of each of their sentences, in order. All
# others run.
TABLE: dict[str, tuple[Sections, dict[str, tuple[str, ...]]]] = {
    "as it is": ({}, {}),
    "fp32": (training(precision="fp32"), {}),
    "fp16_mixed": (training(precision="fp16_mixed"), {}),
    "bf16_pure": (training(precision="bf16_pure"), every((ZERO, *MEGATRONS), "bf16_mixed")),
    "fp16_pure": (training(precision="fp16_pure"), every((ZERO, *MEGATRONS), "fp16_mixed")),
    "adam": (training(optimizer="adam"), {}),
    "sgd": (training(optimizer="sgd"), every((ZERO, MEGATRON_ZERO), ZERO_0)),
    "lion": (
        training(optimizer="lion"),
        {**every((ZERO, MEGATRON_ZERO), ZERO_0), FSDP: (NOT_ITS,)},
    ),
    **{
        name: (
            training(optimizer=name),
            {**every((ZERO, MEGATRON_ZERO), NOT_ITS, ZERO_0), **every((FSDP, MEGATRON), NOT_ITS)},
        )
        for name in ("adafactor", "adamw_8bit", "paged_adamw_8bit", "muon")
    },
    "full recompute": (training(activation_checkpointing="full"), {}),
    "selective recompute": (training(activation_checkpointing="selective"), {}),
    "recompute of 2 layers": (training(activation_checkpointing=2), {}),
    **{
        name: (training(attention=name), every(MEGATRONS, "training.attention"))
        for name in ("eager", "sdpa", "flash_attention_2")
    },
    "accumulation": (training(gradient_accumulation_steps=4), {}),
    "lora": (training(lora={"r": 8}), every(MEGATRONS, "training.lora")),
    "nf4 without lora": (
        training(precision="bf16_pure", quantization="nf4"),
        every(tuple(NAMES), "add training.lora"),
    ),
    **{
        name: (
            training(**PACKED, quantization=name),
            {
                ZERO: ("training.precision", "training.autocast", "training.quantization"),
                FSDP: ("training.quantization", "training.autocast"),
                **every(
                    MEGATRONS,
                    "training.autocast",
                    "training.precision",
                    "training.autocast",
                    "training.lora",
                    "training.quantization",
                ),
            },
        )
        for name in ("nf4", "int8")
    },
    "tp 2": (mesh(tensor_parallel_size=2), every((DDP, ZERO, FSDP), TP)),
    "tp 3": (
        mesh(tensor_parallel_size=3),
        {
            **every((DDP, ZERO, FSDP), "parallelism.tensor_parallel_size=3"),
            **every(MEGATRONS, "hardware.num_gpus=6"),
        },
    ),
    "pp 2": (mesh(pipeline_parallel_size=2), every((DDP, FSDP), PP)),
    "cp 2": (mesh(context_parallel_size=2), every((DDP, ZERO, FSDP, MEGATRON_ZERO), CP)),
    "ep 2": (
        {"model": {"config": MIXTRAL}, **mesh(expert_parallel_size=2)},
        every((DDP, ZERO, FSDP, MEGATRON_ZERO), EP),
    ),
    "ep 2 without experts": (
        mesh(expert_parallel_size=2),
        {**every((DDP, ZERO, FSDP, MEGATRON_ZERO), EP), MEGATRON: ("has no experts",)},
    ),
    "sequence parallelism": (
        mesh(tensor_parallel_size=2, sequence_parallel=True),
        every((DDP, ZERO, FSDP), TP, "parallelism.sequence_parallel=true"),
    ),
    "interleaved stages": (
        {
            **training(gradient_accumulation_steps=2),
            **mesh(pipeline_parallel_size=2, virtual_pipeline_size=2),
        },
        {
            **every((ZERO, MEGATRON_ZERO), "parallelism.virtual_pipeline_size=2"),
            **every((DDP, FSDP), PP),
        },
    ),
    "experts": ({"model": {"config": MIXTRAL}}, {MEGATRON_ZERO: ("has experts",)}),
    **{
        name: ({"model": {"config": None, "name": name}, **training(seq_len=256)}, refused)
        for name, refused in (
            ("gpt2", {}),
            ("llama3.2-1b", {}),
            ("deepseek-v2-lite", {MEGATRON_ZERO: ("has experts",)}),
            ("qwen3-30b-a3b", {MEGATRON_ZERO: ("has experts",)}),
        )
    },
    **{
        name: (
            {"model": {"config": None, "name": name}, **training(seq_len=256)},
            every(tuple(NAMES), "activations of"),
        )
        for name in ("bert-base", "t5-small")
    },
}


def sentences(name: str, sections: Sections) -> tuple[str, ...]:
    """What an engine says against a setting; nothing where it runs."""
    try:
        found = full_estimate(small_run(name, **sections), replay=False)
    except InputError as error:
        return tuple(error.problems)
    assert found.result.allocated_bytes > 0
    return ()


@pytest.mark.parametrize("setting", TABLE)
@pytest.mark.parametrize("name", NAMES)
def test_an_engine_refuses_what_the_table_says(name: str, setting: str) -> None:
    """As many sentences as the table has, each with its key words."""
    sections, refused = TABLE[setting]
    found, expected = sentences(name, sections), refused.get(name, ())
    assert len(found) == len(expected), found
    for sentence, words in zip(found, expected, strict=True):
        assert words in sentence


@pytest.mark.parametrize("name", NAMES)
def test_every_engine_runs_more_than_it_refuses(name: str) -> None:
    """The table itself keeps its balance."""
    refusals = sum(name in refused for _, refused in TABLE.values())
    assert refusals < 0.7 * len(TABLE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["bf16_mixed", "fp16_mixed"])
def test_wider_numbers_never_take_less(name: str, precision: str) -> None:
    """Activations in fp32 are at least those in 16 bits."""
    narrow, wide = (
        full_estimate(
            small_run(name, training={"precision": p}), replay=False
        ).result.breakdown.activations_gb
        for p in (precision, "fp32")
    )
    assert narrow < wide
