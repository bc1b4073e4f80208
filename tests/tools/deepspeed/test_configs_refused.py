"""Configurations that are refused, each in sentences, and any file at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.keys import TABLES, TOP
from gpu_mem_calculator.tools.deepspeed.read import read, run_file
from tests.tools.deepspeed.test_read import ADAMW

from .test_configs import MICRO


def refused(section: str, **values: Any) -> tuple[str, dict[str, Any]]:
    """A file with one section, under the section's name."""
    return section, {**MICRO, "optimizer": ADAMW, section: values}


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            refused("zero_optimization", stage=3, all_reduce_bucket_size=5e8),
            "did you mean 'reduce_bucket_size'?",
        ),
        (
            refused("zero_optimization", stage=3, sub_group_size="auto"),
            'sub_group_size="auto": neither DeepSpeed nor the Trainer fills it in',
        ),
        (refused("zero_optimization", stage=3, sub_group_size=0), "must be a whole number, 1"),
        (refused("zero_optimization", stage=2, reduce_bucket_size=2.5), "must be a whole number"),
        (refused("zero_optimization", stage=2, reduce_bucket_size="5e8"), "must be a whole number"),
        (refused("zero_optimization", stage=4), "must be one of 0, 1, 2, 3"),
        (refused("zero_optimization", stage=2, overlap_comm=1), "must be true or false"),
        (refused("zero_optimization", stage=3, zero_quantized_weights=True), "set it to false"),
        (refused("zero_optimization", stage=3, zero_hpz_partition_size=8), "set it to 1"),
        (refused("zero_optimization", stage=3, mics_shard_size=8), "has no MiCS any more"),
        (
            refused("zero_optimization", stage=3, leaf_module={"classes": ["x"]}),
            "gathered together",
        ),
        (refused("zero_optimization", stage=3, zenflow={"topk_ratio": 0.1}), "leave it out"),
        (
            refused(
                "zero_optimization", stage=3, prefetch_bucket_size=1, stage3_prefetch_bucket_size=1
            ),
            "are the same; leave prefetch_bucket_size out",
        ),
        (
            refused(
                "zero_optimization", stage=2, cpu_offload=True, offload_optimizer={"device": "cpu"}
            ),
            "leave cpu_offload out",
        ),
        (refused("zero_optimization", stage=2, offload_optimizer={"device": "gpu"}), "one of"),
        (refused("zero_optimization", stage=2, offload_optimizer="cpu"), "must be an object"),
        (
            refused(
                "zero_optimization", stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5}
            ),
            "offloaded in part is not modelled; set it to 1",
        ),
        (
            refused(
                "zero_optimization", stage=3, offload_param={"device": "nvme", "buffer_count": 9}
            ),
            "buffer_count=9 is not modelled; set it to 5",
        ),
        (
            refused(
                "zero_optimization",
                stage=3,
                offload_optimizer={"device": "cpu", "pin_memory": True},
                offload_param={"device": "cpu", "pin_memory": False},
            ),
            "differ in pin_memory",
        ),
        (
            refused("activation_checkpointing", partitioned_activations=True),
            "did you mean 'partition_activations'?",
        ),
        (
            refused("activation_checkpointing", contiguous_memory_optimization=True),
            "needs partition_activations; set that to true",
        ),
        (refused("bf16", enabled=True, bf16_optimizer_states=True), "16-bit optimizer states"),
        (refused("fp16", enabled=True, opt_level="O2"), "fp16.opt_level is not a key"),
        (refused("data_types", grad_accum_dtype="bf16"), "differs from the fp32"),
        (refused("data_types", grad_accum_dtype="int8"), "must be 'fp32', 'fp16' or 'bf16'"),
        (refused("torch_autocast", enabled=True), "autocast is not modelled"),
        (refused("torch_autocast", dtype="bfloat16"), "does not say 'enabled'"),
        (refused("hybrid_engine", enabled=True), "hybrid engine is not modelled"),
        (refused("tensor_parallel", autotp_size=4), "AutoTP is not modelled"),
        (refused("amp", enabled=False), "has no Apex' amp any more"),
        (refused("elasticity", enabled=True), "set train_micro_batch_size_per_gpu"),
        (refused("tensorboard", path="x"), "tensorboard.path is not a key"),
        (refused("zero_optimisation", stage=3), "did you mean 'zero_optimization'?"),
        (refused("autotuning", enabled=True), "many runs"),
        (
            (
                "gradient_allreduce_op",
                {**MICRO, "zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum"},
            ),
            'set it to "mean"',
        ),
        (
            ("allgather_size", {**MICRO, "allgather_size": 5, "zero_optimization": {"stage": 1}}),
            "set zero_optimization.allgather_bucket_size instead",
        ),
        (("train_batch_size", {"train_batch_size": 1e400}), "must be a whole number"),
        (
            refused("pipeline", activation_checkpoint_interval=1),
            "training.activation_checkpointing",
        ),
    ],
)
def test_what_is_not_modelled_is_refused(file: tuple[str, dict[str, Any]], words: str) -> None:
    """In one sentence, which begins with the key."""
    section, data = file
    with pytest.raises(InputError) as caught:
        read(data, num_gpus=8)
    (problem,) = caught.value.problems
    assert problem.startswith(section)
    assert words in problem


def test_auto_is_what_the_trainer_writes() -> None:
    """The defaults of its arguments, and sizes that follow from the hidden size."""
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size")
    zero = {"stage": 3, **dict.fromkeys((*sizes, "stage3_param_persistence_threshold"), "auto")}
    data = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "zero_optimization": zero,
    }
    found = run_file(data, model="llama3.1-8b", settings=["hardware.num_gpus=8"])
    training, engine = found.data["training"], found.data["engine"]
    assert (training["batch_size"], training["gradient_accumulation_steps"]) == (8, 1)
    assert (training["precision"], training["gradient_clipping"]) == ("fp32", 1.0)
    assert engine["reduce_bucket_size"] == 4096 * 4096
    assert engine["stage3_prefetch_bucket_size"] == int(0.9 * 4096 * 4096)
    assert engine["stage3_param_persistence_threshold"] == 40_960
    assert sum('="auto" is ' in text for text in found.assumed) == 7


def test_a_batch_that_is_given_decides_those_that_are_auto() -> None:
    """Of a whole step, over the ranks."""
    data = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}
    assert read(data, num_gpus=8)["training"]["batch_size"] == 8
    assert read({**data, "train_batch_size": 16}, num_gpus=8)["training"]["batch_size"] == 2


def test_without_a_model_the_hidden_size_is_not_known() -> None:
    """It is said so, and DeepSpeed's default is checked."""
    data = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    found = read(data, num_gpus=8)
    assert "reduce_bucket_size" not in found["engine"]
    assert "not known without a model" in found["assumed"]["engine.reduce_bucket_size"]


NESTED = [key for name in ("zero_optimization", "offload_param", "fp16") for key in TABLES[name]]
KEYS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 10**12),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["auto", "cpu", "AdamW", "bf16", 5e8, 3]),
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*NESTED, "type", "params", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(data=st.dictionaries(st.sampled_from([*TOP, "x"]), KEYS, max_size=6))
def test_whatever_a_file_says_it_is_read_or_refused(data: dict[str, Any]) -> None:
    """In sentences, never in another error."""
    try:
        found = read(data, num_gpus=8)
    except InputError as error:
        assert error.problems
        return
    assert found["training"]["batch_size"] >= 1
