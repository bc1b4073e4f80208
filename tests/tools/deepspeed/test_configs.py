"""Configurations as people have them: read to what they mean, and taken by DeepSpeed itself."""

from __future__ import annotations

import copy
import json
import warnings
from importlib import import_module
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.tools.deepspeed.read import read, run_file
from tests.conftest import ROOT
from tests.tools.deepspeed.test_keys import World
from tests.tools.deepspeed.test_read import ADAMW, POST, WARMUP

BF16 = {"bf16": {"enabled": True}}
MICRO = {"train_micro_batch_size_per_gpu": 1}
PLAIN = {"train_batch_size": 64, "steps_per_print": 100, "optimizer": ADAMW, "scheduler": WARMUP}
# name: (the file, what it says of training and of the engine beside its type)
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "the post's first file": (PLAIN, {"batch_size": 8, "precision": "fp32"}, {"zero_stage": 0}),
    "the post's last file": (
        POST,
        {"precision": "fp16_mixed"},
        {"zero_stage": 3, "offload_param": "cpu", "reduce_bucket_size": 500_000_000},
    ),
    "the post's checkpoints": (
        {
            **PLAIN,
            **BF16,
            "zero_optimization": {"stage": 3},
            "activation_checkpointing": {
                "partition_activations": True,
                "contiguous_memory_optimization": True,
                "num_checkpoints": 16,
            },
        },
        {"activation_checkpointing": "full"},
        {"partition_activations": True},
    ),
    "stage 2 with small buckets": (
        {
            **MICRO,
            **BF16,
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 1.0,
            "optimizer": ADAMW,
            "zero_optimization": {
                "stage": 2,
                "allgather_partitions": True,
                "allgather_bucket_size": 2e8,
                "overlap_comm": True,
                "reduce_scatter": True,
                "reduce_bucket_size": 2e8,
                "contiguous_gradients": True,
            },
        },
        {"gradient_accumulation_steps": 4, "gradient_clipping": 1.0},
        {"zero_stage": 2, "reduce_bucket_size": 200_000_000, "overlap_comm": True},
    ),
    "stage 2 in the words of 2020": (
        {
            **MICRO,
            "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000},
            "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.999]}},
            "zero_optimization": {
                "stage": 2,
                "cpu_offload": True,
                "cpu_offload_use_pin_memory": True,
            },
        },
        {"precision": "fp16_mixed", "optimizer": "adamw"},
        {"zero_stage": 2, "offload_optimizer": "cpu"},
    ),
    "stage 1 by a word alone": (
        {**MICRO, **BF16, "zero_optimization": True, "allgather_size": 1000},
        {},
        {"zero_stage": 1, "allgather_bucket_size": 1000},
    ),
    "stage 3 as the Trainer's guide has it, filled in": (
        {
            **MICRO,
            "bf16": {"enabled": True},
            "optimizer": ADAMW,
            "scheduler": WARMUP,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "cpu", "pin_memory": True},
                "overlap_comm": True,
                "contiguous_gradients": True,
                "sub_group_size": 1e9,
                "reduce_bucket_size": 589_824,
                "stage3_prefetch_bucket_size": 530_841,
                "stage3_param_persistence_threshold": 7_680,
                "stage3_max_live_parameters": 1e9,
                "stage3_max_reuse_distance": 1e9,
                "stage3_gather_16bit_weights_on_model_save": True,
            },
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "steps_per_print": 2000,
            "wall_clock_breakdown": False,
        },
        {"batch_size": 1},
        {
            "zero_stage": 3,
            "stage3_prefetch_bucket_size": 530_841,
            "sub_group_size": 1_000_000_000,
            "stage3_param_persistence_threshold": 7_680,
        },
    ),
    "ZeRO-Infinity on a disk": (
        {
            **MICRO,
            **BF16,
            "optimizer": ADAMW,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {
                    "device": "nvme",
                    "nvme_path": "/local_nvme",
                    "pin_memory": True,
                    "buffer_count": 4,
                    "fast_init": False,
                },
                "offload_param": {
                    "device": "nvme",
                    "nvme_path": "/local_nvme",
                    "pin_memory": True,
                    "buffer_count": 5,
                    "buffer_size": 1e8,
                    "max_in_cpu": 1e9,
                },
            },
            "aio": {
                "block_size": 262144,
                "queue_depth": 32,
                "intra_op_parallelism": 1,
                "single_submit": False,
                "overlap_events": True,
            },
        },
        {},
        {"offload_optimizer": "nvme", "offload_param": "nvme"},
    ),
    "no pinned memory": (
        {
            **MICRO,
            **BF16,
            "optimizer": ADAMW,
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "cpu", "pin_memory": False},
            },
        },
        {},
        {"offload_optimizer": "cpu", "pin_memory": False},
    ),
    "offload that is off": (
        {
            **MICRO,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "none"},
                "offload_param": {},
            },
        },
        {},
        {"zero_stage": 3},
    ),
    "checkpoints on the host": (
        {
            **MICRO,
            **BF16,
            "activation_checkpointing": {
                "cpu_checkpointing": True,
                "profile": True,
                "partition_activations": False,
            },
        },
        {"activation_checkpointing": "full"},
        {"cpu_checkpointing": True},
    ),
    "reports of every kind": (
        {
            **MICRO,
            "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "a"},
            "wandb": {"enabled": False},
            "csv_monitor": {"enabled": True, "output_path": "x"},
            "flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1},
            "comms_logger": {"enabled": True, "verbose": False},
            "dump_state": True,
            "wall_clock_breakdown": True,
            "memory_breakdown": True,
            "timers": {"throughput": {"enabled": True}},
            "checkpoint": {"tag_validation": "Warn", "load_universal": True},
        },
        {"precision": "fp32"},
        {"zero_stage": 0},
    ),
    "the dtypes said twice": (
        {
            **MICRO,
            **BF16,
            "communication_data_type": "bf16",
            "data_types": {"grad_accum_dtype": "bf16"},
            "prescale_gradients": True,
            "torch_autocast": {"enabled": False, "dtype": "bfloat16"},
            "hybrid_engine": {"enabled": False, "max_out_tokens": 256},
            "zero_optimization": {
                "stage": 1,
                "round_robin_gradients": False,
                "zero_hpz_partition_size": 1,
            },
        },
        {"precision": "bf16_mixed"},
        {"zero_stage": 1},
    ),
    "Lion and a cosine": (
        {
            **MICRO,
            **BF16,
            "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
            "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 1000}},
            "zero_optimization": {"stage": 1},
        },
        {"optimizer": "lion"},
        {"zero_stage": 1},
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_read(name: str) -> None:
    """It is read, and the run that it describes can be estimated."""
    data, training, engine = CONFIGS[name]
    found = read(data, num_gpus=8)
    assert training.items() <= found["training"].items()
    assert engine.items() <= found["engine"].items()
    run = run_file(data, model="gpt2", settings=["hardware.num_gpus=8"])
    assert estimate(run.data, replay=False).allocated_bytes > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_deepspeed_takes_it_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read here that DeepSpeed's own reader refuses."""
    pytest.importorskip("deepspeed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = import_module("deepspeed.runtime.config")
    monkeypatch.setattr(module, "dist", World)
    theirs = module.DeepSpeedConfig(copy.deepcopy(CONFIGS[name][0]))
    ours = read(CONFIGS[name][0], num_gpus=8)
    assert theirs.train_micro_batch_size_per_gpu == ours["training"]["batch_size"]
    assert theirs.zero_optimization_stage == ours["engine"]["zero_stage"]
    stage3 = theirs.zero_config.overlap_comm
    assert stage3 == ours["engine"].get("overlap_comm", ours["engine"]["zero_stage"] == 3)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {
                "partition_activations": True,
                "contiguous_memory_optimization": True,
                "number_checkpoints": 12,
            },
            "the 12 contiguous checkpoints are one a layer",
        ),
        (
            {
                "partition_activations": True,
                "contiguous_memory_optimization": True,
                "num_checkpoints": 16,
            },
            "DeepSpeed's key is number_checkpoints",
        ),
        ({"partition_activations": False}, "every layer is checkpointed"),
    ],
)
def test_checkpoints_are_the_programs_to_make(section: dict[str, Any], words: str) -> None:
    """What is assumed of them is listed."""
    found = read({**MICRO, "activation_checkpointing": section}, num_gpus=8)
    assert any(words in text for text in found["assumed"].values())


def test_the_configurations_of_the_examples_are_read() -> None:
    """Every one that ships."""
    found = sorted((ROOT / "examples").rglob("configs/*.json"))
    assert found
    for path in found:
        data = json.loads(path.read_text("utf-8"))
        assert read(data, num_gpus=8)["engine"]["type"] == "deepspeed", path.name
