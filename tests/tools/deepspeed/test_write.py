"""DeepSpeed's JSON of a run: its names, its batch rule, its sections, and who has none."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.write import write
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed.options import OPTIONS

# Keys of DeepSpeed 0.19.8 (runtime/constants.py, zero/config.py, zero/offload_config.py,
# precision_config.py, activation_checkpointing/config.py) that a run of ours can need.
KNOWN = {
    "": {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "bf16",
        "fp16",
        "zero_optimization",
        "optimizer",
        "gradient_clipping",
        "zero_allow_untested_optimizer",
        "activation_checkpointing",
    },
    "zero_optimization": {
        "stage",
        "contiguous_gradients",
        "reduce_bucket_size",
        "allgather_bucket_size",
        "overlap_comm",
        "offload_param",
        "offload_optimizer",
        "sub_group_size",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
    },
    "offload": {"device", "pin_memory", "nvme_path"},
    "activation_checkpointing": {"partition_activations", "cpu_checkpointing"},
}
# Options that are arguments of the program, not of its JSON.
PROGRAM = {"zero_stage", "zero_init", "partition_method", "amp", "pin_memory"}


def config(engine: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    """The JSON of a small run on eight ranks."""
    file = read(
        {
            "model": {"name": "gpt2"},
            "training": {"batch_size": 2, "gradient_accumulation_steps": 4, **training},
            "parallelism": {"data_parallel_size": 8},
            "engine": {"type": "deepspeed", "zero_stage": 3, **(engine or {})},
            "hardware": {"num_gpus": 8},
        }
    ).file
    return write(file, resolve(file))


def test_the_batch_is_what_every_rank_sees_in_a_step() -> None:
    """DeepSpeed asserts train_batch_size = micro-batch × accumulation × data-parallel ranks."""
    made = config()
    assert made["train_batch_size"] == 64
    assert made["train_micro_batch_size_per_gpu"] == 2
    assert made["gradient_accumulation_steps"] == 4


def test_pipeline_stages_are_no_data_parallel_ranks() -> None:
    """Four stages on eight GPUs are two ranks of data."""
    file = read(
        {
            "model": {"name": "gpt2"},
            "training": {"batch_size": 2, "gradient_accumulation_steps": 4},
            "parallelism": {"pipeline_parallel_size": 4},
            "engine": {"type": "deepspeed", "zero_stage": 1},
            "hardware": {"num_gpus": 8},
        }
    ).file
    assert write(file, resolve(file))["train_batch_size"] == 16


@pytest.mark.parametrize(
    ("dtype", "on"),
    [
        ("bf16", {"bf16": True, "fp16": False}),
        ("fp16", {"bf16": False, "fp16": True}),
        ("fp32", {"bf16": False, "fp16": False}),
    ],
)
def test_precision(dtype: str, on: dict[str, bool]) -> None:
    """A section each, and one of them is on."""
    made = config(dtype=dtype)
    assert {name: made[name]["enabled"] for name in on} == on


def test_offload_is_an_object_and_nvme_has_a_path() -> None:
    """Devices as DeepSpeed reads them."""
    zero = config({"offload_optimizer": "nvme", "offload_param": "cpu", "pin_memory": False})[
        "zero_optimization"
    ]
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": False}
    assert zero["offload_optimizer"]["device"] == "nvme"
    assert zero["offload_optimizer"]["nvme_path"]
    assert "offload_param" not in config()["zero_optimization"]


def test_every_option_that_is_modelled_is_written() -> None:
    """A changed value of each option arrives under DeepSpeed's name."""
    changed: dict[str, Any] = {
        "reduce_bucket_size": 7_000_000,
        "allgather_bucket_size": 6_000_000,
        "overlap_comm": False,
        "contiguous_gradients": False,
        "stage3_prefetch_bucket_size": 5_000_000,
        "stage3_max_live_parameters": 4_000_000,
        "stage3_max_reuse_distance": 3_000_000,
        "stage3_param_persistence_threshold": 2_000,
        "sub_group_size": 1_000_000,
        "partition_activations": True,
        "cpu_checkpointing": True,
    }
    made = config(changed, activation_checkpointing="full")
    found = {**made["zero_optimization"], **made["activation_checkpointing"]}
    assert {key: found[key] for key in changed} == changed
    written = set(changed) | PROGRAM | {"offload_optimizer", "offload_param"}
    assert set(OPTIONS) == written


def test_only_keys_that_deepspeed_knows() -> None:
    """DeepSpeed refuses unknown keys of zero_optimization."""
    for engine in ({}, {"offload_optimizer": "nvme", "offload_param": "nvme"}, {"zero_stage": 0}):
        made = config(engine, optimizer="adamw", activation_checkpointing="full")
        zero = made["zero_optimization"]
        assert made.keys() <= KNOWN[""]
        assert zero.keys() <= KNOWN["zero_optimization"]
        assert made["activation_checkpointing"].keys() <= KNOWN["activation_checkpointing"]
        for key in ("offload_optimizer", "offload_param"):
            assert zero.get(key, {}).keys() <= KNOWN["offload"]


@pytest.mark.parametrize(
    ("training", "written"),
    [
        ({"optimizer": "adamw"}, {"type": "AdamW", "params": {}}),
        ({"optimizer": "adam"}, {"type": "Adam", "params": {"adam_w_mode": False}}),
        (
            {"optimizer": "adamw", "optimizer_implementation": "foreach"},
            {"type": "AdamW", "params": {"torch_adam": True}},
        ),
        ({"optimizer": "sgd_momentum"}, {"type": "SGD", "params": {"momentum": 0.9}}),
    ],
)
def test_optimizer(training: dict[str, Any], written: dict[str, Any]) -> None:
    """DeepSpeed's names; 'Adam' alone would be AdamW there."""
    made = config(**training)
    assert made["optimizer"] == written
    assert ("zero_allow_untested_optimizer" in made) == (written["type"] == "SGD")


def test_clipping_as_given() -> None:
    """None given is the norm of 1 that the estimate assumes; 0 is none."""
    assert config()["gradient_clipping"] == 1.0
    assert config(gradient_clipping=0)["gradient_clipping"] == 0
    assert config(gradient_clipping=0.5)["gradient_clipping"] == 0.5


def test_megatron_with_deepspeed_has_one_too() -> None:
    """ZeRO's part of it."""
    made = config({"type": "megatron_deepspeed", "zero_stage": 1, "reduce_bucket_size": 1000})
    assert made["zero_optimization"] == {"stage": 1, "reduce_bucket_size": 1000}
    assert "activation_checkpointing" not in made


@pytest.mark.parametrize("name", ["pytorch_ddp", "fsdp", "megatron_lm"])
def test_engines_without_deepspeed_are_refused(name: str) -> None:
    """A sentence with the nearest fix."""
    file = read({"model": {"name": "gpt2"}, "engine": {"type": name}}).file
    with pytest.raises(InputError, match=f"'{name}' does not use DeepSpeed; set it to 'deepspeed'"):
        write(file, resolve(file))


def test_servers_are_refused() -> None:
    """They do not train."""
    file = read({"model": {"name": "gpt2"}, "inference": {"engine": "vllm"}}).file
    with pytest.raises(InputError, match="vLLM serves models"):
        write(file, resolve(file))


def test_shards_larger_than_the_swap_buffers_are_refused() -> None:
    """DeepSpeed would stop at the first of them."""
    file = read(
        {
            "model": {"name": "llama3.1-70b"},
            "engine": {"type": "deepspeed", "zero_stage": 3, "offload_param": "nvme"},
            "hardware": {"num_gpus": 2},
        }
    ).file
    with pytest.raises(InputError, match="larger than the swap buffers"):
        write(file, resolve(file))
