"""Bodies of the reference calculator's page as run files: what is dropped, what is told."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpu_mem_calculator.web.compat_bodies import from_reference

from .bodies import PAGE, README, Body, changed, sentences, total


@pytest.mark.parametrize(
    "name", ["pytorch_ddp", "deepspeed", "megatron_lm", "fsdp", "megatron_deepspeed"]
)
def test_its_page_works_with_every_engine(name: str) -> None:
    """Fields that were hidden with other engines stay behind; the rest is what it is."""
    made = from_reference(changed(PAGE, "engine", type=name))
    plain = {"type": name}
    if "deepspeed" in name:
        plain |= {"zero_stage": 3, "offload_optimizer": "cpu"}
    model = {k: v for k, v in README["model"].items() if k != "name"}
    assert total(made) == total({**PAGE, "model": model, "engine": plain})


def test_nothing_is_dropped_that_the_engine_has() -> None:
    """ZeRO's stage counts for DeepSpeed, and the strategy for FSDP."""
    for engine in (
        {"type": "deepspeed", "zero_stage": 2},
        {"type": "fsdp", "sharding_strategy": "no_shard"},
        {"type": "megatron_lm", "use_distributed_optimizer": True},
    ):
        body = changed(PAGE, "engine", **engine)
        assert total(from_reference(body)) != total(
            from_reference(changed(PAGE, "engine", type=engine["type"]))
        )
    made = from_reference(changed(PAGE, "engine", type="megatron_lm"))
    assert made["engine"] == {"type": "megatron_lm", "distributed_optimizer": False}


def test_a_null_stage_is_none() -> None:
    """The reference's own GPT-3 configuration has one, and its service failed on it."""
    body = {**PAGE, "engine": {"type": "megatron_lm", "zero_stage": None}}
    assert total(from_reference(body)) == total(
        {**PAGE, "model": README["model"], "engine": {"type": "megatron_lm"}}
    )


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"type": "pytorch_ddp", "zero_stage": 3}, "engine.zero_stage=3 is not an option of"),
        ({"type": "fsdp", "zero_stage": 2}, "engine.zero_stage=2 is not an option of"),
        ({"type": "deepspeed", "sharding_strategy": "full_shard"}, "engine.sharding_strategy="),
        ({**PAGE["engine"], "sharding_strategy": "shard_grad_op"}, "engine.sharding_strategy="),
        ({**PAGE["engine"], "type": "fsdp", "offload_param": "cpu"}, "engine.offload_param='cpu'"),
        ({**PAGE["engine"], "type": "fsdp", "zero_init": False}, "engine.zero_init=false"),
        ({**PAGE["engine"], "use_distributed_optimizer": True}, "use_distributed_optimizer"),
        ({**PAGE["engine"], "num_micro_batches": 3}, "num_micro_batches"),
        ({**PAGE["engine"], "type": "deepspeeed"}, "did you mean 'deepspeed'"),
    ],
)
def test_real_contradictions_are_told(engine: Body, said: str) -> None:
    """What asks for something that the engine does not have, in the usual words."""
    assert said in sentences({**PAGE, "engine": engine})


def test_micro_batches_that_are_the_accumulation_steps_are_said_twice() -> None:
    """The same number is no contradiction."""
    body = changed(PAGE, "engine", type="megatron_lm", num_micro_batches=4)
    assert "num_micro_batches" not in from_reference(body)["engine"]


def test_experts_without_experts() -> None:
    """Its page's numbers for them are dropped where they are off, others are told."""
    named = changed(PAGE, "model", name="llama2-7b")
    assert total(from_reference(named)) == total(
        changed(README, "training", activation_checkpointing=2)
    )
    assert "model.num_experts=4" in sentences(changed(named, "model", num_experts=4))


def test_the_total_of_all_cards_is_a_product() -> None:
    """Another number is refused."""
    good = changed(PAGE, "hardware", total_gpu_memory_gb=640.0)
    assert "total_gpu_memory_gb" not in from_reference(good)["hardware"]
    assert from_reference(changed(PAGE, "hardware", total_gpu_memory_gb=None)) == from_reference(
        PAGE
    )
    assert "hardware.total_gpu_memory_gb" in sentences(
        changed(PAGE, "hardware", total_gpu_memory_gb=600)
    )


@pytest.mark.parametrize(
    "body",
    [
        [],
        "x",
        None,
        {},
        {"model": 3},
        {"engine": [], "model": {}},
        {"model": {"name": "gpt2"}, "hardware": {"num_gpus": "x", "total_gpu_memory_gb": "y"}},
    ],
)
def test_junk_is_a_sentence(body: Any) -> None:
    """Whatever it is, reading the run file says what is wrong with it."""
    assert sentences(body)


def test_a_run_file_stays_as_it_is() -> None:
    """Ours pass through, and what was sent is not touched."""
    before = copy.deepcopy(PAGE)
    from_reference(PAGE)
    assert before == PAGE
    assert from_reference(README) == README
    mine = {"model": {"name": "mixtral-8x7b", "num_experts": 8}, "engine": {"type": "fsdp"}}
    assert from_reference(mine) == mine
