"""Run files with a `program` section: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.read import as_dict, with_settings
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

TRAINER = "transformers.Trainer"


def run_file(args: dict[str, Any] | None = None, gpus: int = 1, **program: Any) -> dict[str, Any]:
    """A run file of transformers.Trainer."""
    section = {"tool": TRAINER, "args": args or {}, "data": {"seq_len": 128}, **program}
    section.setdefault("load", {"dtype": "float32"})
    return {
        "model": {"name": "smollm2-135m"},
        "program": section,
        "hardware": {"gpu": "h100", "num_gpus": gpus},
    }


def training(data: dict[str, Any]) -> dict[str, Any]:
    """The training section that a run file means."""
    found: dict[str, Any] = as_dict(read(data).file.training)
    return found


def test_a_program_is_read_with_the_tools_defaults() -> None:
    """Every argument that is left out has Trainer's own default."""
    meant = training(run_file())
    assert meant["batch_size"] == 8
    assert (meant["optimizer"], meant["optimizer_implementation"]) == ("adamw", "fused")
    assert meant["precision"] == "fp32"


@pytest.mark.parametrize(
    ("dtype", "args", "meant"),
    [
        ("float32", {"bf16": True}, {"precision": "bf16_mixed"}),
        ("float32", {"fp16": True}, {"precision": "fp16_mixed"}),
        ("bfloat16", {"bf16": True}, {"precision": "bf16_pure", "autocast": True}),
        ("torch.bfloat16", {}, {"precision": "bf16_pure"}),
        ("auto", {}, {"precision": "bf16_pure"}),
    ],
)
def test_precision(dtype: str, args: dict[str, Any], meant: dict[str, Any]) -> None:
    """Weights keep the dtype they are loaded in; autocast is around the forward pass."""
    found = training(run_file(args, load={"dtype": dtype}))
    assert {key: found.get(key) for key in ("precision", "autocast") if key in found} == meant


def test_a_key_of_the_run_file_itself_is_kept() -> None:
    """What a remedy changes wins over the program."""
    data = {**run_file({"per_device_train_batch_size": 4}), "training": {"batch_size": 1}}
    assert training(data)["batch_size"] == 1


def test_a_run_file_that_was_read_can_be_read_again() -> None:
    """Reading is idempotent, so results can be saved as run files."""
    file = read(run_file({"bf16": True})).file
    assert as_dict(read(as_dict(file)).file) == as_dict(file)


def test_arguments_can_be_set_by_their_own_names() -> None:
    """--set program.args.X=V changes the tool's argument."""
    data = with_settings(run_file(), ["program.args.per_device_train_batch_size=3"])
    assert training(data)["batch_size"] == 3


def test_the_tools_defaults_are_listed() -> None:
    """What was assumed is part of the answer."""
    result = full_estimate(run_file(), replay=False).resolved
    [sentence] = [one for one in result.assumed if one.startswith(TRAINER)]
    assert "per_device_train_batch_size=8" in sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"program": 3}, "program=3 must be an object with a tool and its args"),
        ({"program": {}}, "program.tool is missing; name it, such as 'transformers.Trainer'"),
        ({"program": {"tool": "x"}}, "program.tool='x' is not modelled"),
        ({"program": {"tool": TRAINER, "arg": {}}}, "program.arg is not a known key"),
        ({"program": {"tool": TRAINER, "args": 1}}, "program.args=1 must be an object"),
        (
            {"program": {"tool": TRAINER, "args": {"batch": 1}}},
            "program.args.batch is not an argument of transformers.Trainer 5.17.0",
        ),
        (
            {"program": {"tool": TRAINER, "args": {"use_cache": True}}},
            "program.args.use_cache=true: a cache of keys and values",
        ),
        (
            {"program": {"tool": TRAINER, "load": {"dtype": "float16"}, "args": {"fp16": True}}},
            "program.args.fp16=true: torch's gradient scaler refuses gradients in float16",
        ),
        ({"inference": {}}, "program and inference are both there"),
    ],
)
def test_bad_programs_are_refused(change: dict[str, Any], sentence: str) -> None:
    """One sentence: the value, the rule, the nearest fix."""
    with pytest.raises(InputError) as error:
        read({**run_file(), **change}).checked()
    assert sentence in str(error.value)


def test_another_version_is_named() -> None:
    """A newer version than the one that was read has its own defaults, and the older one's code."""
    warnings = full_estimate(run_file(version="5.18.0"), replay=False).resolved.warnings
    assert any("'5.18.0' is treated as transformers 5.17.0" in one for one in warnings)


LAUNCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"type": "pytorch_ddp", "init_device": "cpu"}),
    (
        {"args": {"bf16": True, "fsdp": True}},
        {"type": "fsdp", "fsdp_version": 2, "wrap_embedding_and_head": True},
    ),
    (
        {"args": {"fsdp": "shard_grad_op", "fsdp_config": {"fsdp_version": 1}}},
        {"fsdp_version": 1, "sharding_strategy": "full_shard", "sync_each_batch": False},
    ),
    (
        {
            "args": {
                "fsdp": True,
                "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
            }
        },
        {"fsdp_version": 2, "sync_each_batch": None},
    ),
    (
        {
            "accelerate": {
                "distributed_type": "FSDP",
                "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"},
            }
        },
        {"fsdp_version": 1, "sharding_strategy": "shard_grad_op"},
    ),
    (
        {
            "accelerate": {
                "distributed_type": "FSDP",
                "fsdp_config": {
                    "fsdp_offload_params": True,
                    "fsdp_sharding_strategy": "FULL_SHARD",
                },
            }
        },
        {"fsdp_version": 1, "cpu_offload": True, "sharding_strategy": "full_shard"},
    ),
    (
        {
            "args": {
                "bf16": True,
                "deepspeed": {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}},
            }
        },
        {"type": "deepspeed", "zero_stage": 3, "reduce_bucket_size": 576 * 576},
    ),
    (
        {
            "accelerate": {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu"},
            }
        },
        {"zero_stage": 2, "offload_optimizer": "cpu"},
    ),
]


@pytest.mark.parametrize(("launch", "engine"), LAUNCHES)
def test_launches(launch: dict[str, Any], engine: dict[str, Any]) -> None:
    """One GPU, DDP, FSDP and DeepSpeed, from the tools that launch them."""
    found = as_dict(read(run_file(gpus=8, **launch)).file.engine)
    assert {key: found.get(key) for key in engine} == engine


@pytest.mark.parametrize(
    ("launch", "sentence"),
    [
        ({"args": {"fsdp": True, "fsdp_config": {"shard_it": 1}}}, "program.fsdp_config.shard_it"),
        (
            {"args": {"deepspeed": {"zero_optimization": {"stage": 2}, "flops_profiler": {}}}},
            "program.deepspeed.flops_profiler is not read",
        ),
        ({"args": {"deepspeed": "ds.json"}}, "program.deepspeed='ds.json' must be an object"),
    ],
)
def test_launches_that_are_not_read_are_refused(launch: dict[str, Any], sentence: str) -> None:
    """No key is accepted and ignored."""
    with pytest.raises(InputError) as error:
        read(run_file(gpus=8, **launch)).checked()
    assert sentence in str(error.value)


def test_what_a_program_means_is_listed() -> None:
    """`explain` and `validate` show the keys of the run file."""
    meant = full_estimate(run_file({"bf16": True}), replay=False).resolved.meant
    assert "training.precision='bf16_mixed'" in meant
    assert "engine.init_device='cpu'" in meant


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ({"args": {"per_device_train_batch_size": {}}}, "batch_size={} must be a whole number"),
        ({"args": {"per_device_train_batch_size": None}}, "=null must be a whole number"),
        ({"args": {"bf16": "x"}}, "bf16='x' must be true or false"),
        ({"args": {"gradient_checkpointing_kwargs": 3}}, "=3 must be an object"),
        ({"args": {"max_grad_norm": float("inf")}}, "max_grad_norm=Infinity must be a number"),
        ({"args": {"optim": 3}}, "optim=3 must be a text"),
        ({"args": {"gradient_accumulation_steps": 0}}, "steps=0 must be 1 or more"),
        ({"data": {"seq_len": "long"}}, "program.data.seq_len='long' must be a whole number"),
        ({"args": {"fsdp": True, "fsdp_config": {"version": "x"}}}, "must be 1 or 2"),
    ],
)
def test_values_of_another_kind(program: dict[str, Any], sentence: str) -> None:
    """One sentence for a value that the tool does not take."""
    with pytest.raises(InputError) as error:
        read(run_file(gpus=8, **program)).checked()
    assert sentence in str(error.value)
