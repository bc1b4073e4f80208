"""Reading DeepSpeed's JSON: names, batch sizes, precision, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.detect import is_deepspeed
from gpu_mem_calculator.tools.deepspeed.read import read

ADAMW = {
    "type": "AdamW",
    "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
}
WARMUP = {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000},
}
# The file of the blog post that this package began with: ZeRO-3 with everything on the CPU.
POST = {
    "train_batch_size": 64,
    "steps_per_print": 100,
    "optimizer": ADAMW,
    "scheduler": WARMUP,
    "fp16": {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    },
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 5e8,
        "overlap_comm": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
    },
}


def problems(data: Any, num_gpus: int | None = 8, **rest: Any) -> list[str]:
    """What is wrong with a file."""
    with pytest.raises(InputError) as caught:
        read(data, num_gpus=num_gpus, **rest)
    return caught.value.problems


def with_zero(**zero: Any) -> dict[str, Any]:
    """A small file with a section of ZeRO."""
    return {"train_micro_batch_size_per_gpu": 1, "optimizer": ADAMW, "zero_optimization": zero}


def test_the_post_s_file() -> None:
    """Every key arrives under the run file's name."""
    found = read(POST, num_gpus=8)
    assert found["training"] == {
        "batch_size": 8,
        "gradient_accumulation_steps": 1,
        "precision": "fp16_mixed",
        "optimizer": "adamw",
    }
    assert found["parallelism"] == {"data_parallel_size": 8}
    assert found["engine"] == {
        "type": "deepspeed",
        "zero_stage": 3,
        "reduce_bucket_size": 500_000_000,
        "overlap_comm": True,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
    }
    assert list(found["assumed"]) == [
        "training.seq_len",
        "training.activation_checkpointing",
        "engine.zero_init",
    ]
    assert "scheduler" in found["no_memory"]
    assert "fp16.loss_scale" in found["no_memory"]


def test_comments_and_last_commas_are_read(tmp_path: Path) -> None:
    """The post's own file has them, and DeepSpeed's parser accepts them."""
    path = tmp_path / "ds_config.json"
    path.write_text('{\n "train_batch_size": 64, // 8 x 8\n "zero_optimization": {"stage": 3,},\n}')
    found = read(path, num_gpus=8)
    assert (found["training"]["batch_size"], found["engine"]["zero_stage"]) == (8, 3)


def test_a_path_reads_as_its_data(tmp_path: Path) -> None:
    """And is recognised by its keys."""
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(POST))
    assert read(path, num_gpus=8) == read(POST, num_gpus=8)
    assert is_deepspeed(POST)
    assert not is_deepspeed({"model": {"name": "gpt2"}, "training": {}})
    assert not is_deepspeed({"anything": 1})
    assert not is_deepspeed([1])


@pytest.mark.parametrize(
    ("train", "micro", "steps", "gpus", "expected"),
    [
        (64, 2, 4, 8, (2, 4, 8)),
        (64, 2, None, 8, (2, 4, 8)),
        (64, None, 4, 8, (2, 4, 8)),
        (64, None, None, 8, (8, 1, 8)),
        (None, 2, 4, 8, (2, 4, 8)),
        (None, 2, None, 8, (2, 1, 8)),
        (64, 2, 4, None, (2, 4, 8)),
        (64, None, None, None, (64, 1, 1)),
        (None, 3, 5, None, (3, 5, 1)),
    ],
)
def test_batch_sizes_are_completed_as_deepspeed_does(
    train: int | None,
    micro: int | None,
    steps: int | None,
    gpus: int | None,
    expected: tuple[int, int, int],
) -> None:
    """Two give the third; all three give the ranks where those are not known."""
    data = {
        "train_batch_size": train,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }
    found = read(data, num_gpus=gpus)
    training = found["training"]
    ranks = found["parallelism"]["data_parallel_size"]
    assert (training["batch_size"], training["gradient_accumulation_steps"], ranks) == expected
    assert ("hardware.num_gpus" in found["assumed"]) == (gpus is None)


@pytest.mark.parametrize(
    ("batch", "gpus", "words"),
    [
        (
            {"train_batch_size": 60, "train_micro_batch_size_per_gpu": 2},
            8,
            [
                "is not a multiple of train_micro_batch_size_per_gpu 2 x 8 ranks, which is 16; "
                "set it to 64"
            ],
        ),
        (
            {"train_batch_size": 61, "gradient_accumulation_steps": 4},
            1,
            [
                "is not a multiple of gradient_accumulation_steps 4 x 1 rank, which is 4; "
                "set it to 60"
            ],
        ),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 2,
            },
            8,
            ["which is 32; set gradient_accumulation_steps to 4, or train_batch_size to 32"],
        ),
        ({"train_batch_size": 4}, 8, ["=4 is not a multiple of 8 ranks; set it to 8"]),
        ({"gradient_accumulation_steps": 2}, 8, ["add train_micro_batch_size_per_gpu"]),
        ({"train_batch_size": 65}, 8, ["=65 is not a multiple of 8 ranks; set it to 64"]),
        ({"train_batch_size": 0}, 8, ["train_batch_size=0 must be a whole number, 1 or more"]),
    ],
)
def test_batch_sizes_that_disagree(batch: dict[str, int], gpus: int, words: list[str]) -> None:
    """One sentence, with the nearest fix."""
    (problem,) = problems(batch, gpus)
    for word in words:
        assert word in problem


def test_stages_of_a_pipeline_share_their_data() -> None:
    """Four stages on eight GPUs are two ranks of data."""
    found = read(
        {"train_batch_size": 16, "gradient_accumulation_steps": 4}, num_gpus=8, model_ranks=4
    )
    assert found["parallelism"] == {"data_parallel_size": 2}
    assert found["training"]["batch_size"] == 2
    assert found["hardware"] == {"num_gpus": 8}
    (problem,) = problems({"train_micro_batch_size_per_gpu": 1}, 10, model_ranks=4)
    assert problem.endswith("use 8")


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({}, "fp32"),
        ({"bf16": {"enabled": True}}, "bf16_mixed"),
        ({"bfloat16": {"enabled": True}}, "bf16_mixed"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "fp16_mixed"),
        ({"fp16": {"loss_scale": 128}}, "fp32"),
    ],
)
def test_precision(sections: dict[str, Any], precision: str) -> None:
    """Without a section that is on, DeepSpeed trains in fp32."""
    found = read({"train_batch_size": 8, **sections}, num_gpus=8)
    assert found["training"]["precision"] == precision


def test_two_precisions() -> None:
    """DeepSpeed asserts against it."""
    both = {"train_batch_size": 8, "fp16": {"enabled": True}, "bf16": {"enabled": True}}
    assert problems(both) == ["bf16.enabled and fp16.enabled are both true; set one to false"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (with_zero(stage=2, offload_param={"device": "cpu"}), "offload_param=cpu needs ZeRO-3"),
        (with_zero(stage=0, offload_optimizer={"device": "cpu"}), "needs ZeRO; try zero_stage"),
        (with_zero(stage=1, offload_optimizer={"device": "nvme"}), "nvme needs ZeRO-3"),
        (with_zero(stage=2, allgather_bucket_size=5), "is odd"),
    ],
)
def test_the_engine_s_rules_hold_without_a_model(data: dict[str, Any], words: str) -> None:
    """Problems that do not depend on the model are raised before one is named."""
    (problem,) = problems(data)
    assert words in problem


@pytest.mark.parametrize(
    ("value", "accepted"), [(False, True), (None, True), (0, False), (True, False)]
)
def test_a_flag_takes_its_value_and_no_number(value: Any, accepted: bool) -> None:
    """16-bit master weights are not modelled; 0 is not `false`."""
    bf16 = {"enabled": True, "bf16_master_weights_and_grads": value}
    file = {"train_micro_batch_size_per_gpu": 1, "bf16": bf16}
    if accepted:
        assert read(file, num_gpus=1)
    else:
        with pytest.raises(InputError, match="bf16_master_weights_and_grads"):
            read(file, num_gpus=1)
