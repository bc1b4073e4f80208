"""How Trainer is launched: Accelerate's settings, a DeepSpeed file, and what is left out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

MODEL = "--model_name_or_path Qwen/Qwen2.5-0.5B"
AUTO: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
    "activation_checkpointing": {"partition_activations": True},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
}


def _read(line: str, folder: Path, **files: Any) -> Reading:
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return read_command(read_launch(shlex.split(line), NamedFiles(folder)))


def test_auto_is_completed_by_the_trainer(tmp_path: Path) -> None:
    """DeepSpeed's engine keys, its own optimizer, and what has no effect under Trainer."""
    line = f"deepspeed --num_gpus 4 run_clm.py {MODEL} --bf16 --block_size 9 --deepspeed ds.json"
    reading = _read(line, tmp_path, ds=AUTO)
    assert not reading.problems
    assert reading.run["engine"] == {
        "type": "deepspeed",
        "zero_stage": 3,
        "reduce_bucket_size": 896 * 896,
        "offload_optimizer": "cpu",
    }
    assert reading.run["training"] == {"optimizer": "adamw", "optimizer_implementation": None}
    assert reading.keys["deepspeed.activation_checkpointing.partition_activations"] == "free"
    assert reading.keys["deepspeed.zero_optimization.stage"] == "memory"
    run = full_estimate(reading.run, replay=False).resolved.run
    assert (run.precision, run.batch, run.implementation) == ("bf16_mixed", 8, "")


def test_a_file_that_trainer_refuses(tmp_path: Path) -> None:
    """A value that differs from the argument is a problem, as in trainer_config_process."""
    ds = {**AUTO, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
    line = f"deepspeed run_clm.py {MODEL} --deepspeed ds.json"
    assert [sentence[:38] for sentence in _read(line, tmp_path, ds=ds).problems] == [
        "deepspeed train_micro_batch_size_per_g",
        "deepspeed bf16.enabled=true differs fr",
    ]


def test_a_setting_that_is_not_modelled_is_a_limit(tmp_path: Path) -> None:
    """The rest of the file is read; a key that nobody knows is a problem."""
    line = f"deepspeed run_clm.py {MODEL} --deepspeed ds.json"
    reading = _read(line, tmp_path, ds={**AUTO, "prescale_gradients": 3, "amp": {"enabled": True}})
    assert not reading.run.get("problems")
    assert any("amp" in one.key for one in reading.limits)
    unknown = _read(line, tmp_path, ds={**AUTO, "zero_optimisation": {}})
    assert "did you mean" in " ".join(unknown.problems)


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        ({"distributed_type": "MULTI_GPU"}, {"type": "pytorch_ddp"}),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"version": 2, "offload_params": True}},
            {"type": "fsdp", "fsdp_version": 2, "cpu_offload": True},
        ),
        (
            {
                "distributed_type": "FSDP",
                "fsdp_config": {"fsdp_version": 2},
                "parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 4},
            },
            {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 4},
        ),
        (
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": False},
            },
            {"type": "deepspeed", "zero_stage": 3, "zero_init": False},
        ),
    ],
)
def test_accelerate(tmp_path: Path, config: dict[str, Any], engine: dict[str, Any]) -> None:
    """The engine that a configuration chooses, with its mixed precision."""
    data = {**config, "num_processes": 8, "mixed_precision": "bf16"}
    line = f"accelerate launch --config_file a.json run_clm.py {MODEL} --block_size 64"
    reading = _read(line, tmp_path, a=data)
    estimate = full_estimate(reading.run, replay=False).resolved
    options = {"type": estimate.engine.name, **estimate.run.options}
    assert {key: options.get(key) for key in engine} == engine
    assert str(estimate.run.precision).startswith("bf16")


@pytest.mark.parametrize(
    ("option", "could"),
    [
        ("--mixed_precision fp8", "either"),
        ("--dynamo_backend eager", "either"),
        ("--use_fsdp --fsdp_version 2", "more"),  # no policy: one unit
        ("--use_fsdp --fsdp_auto_wrap_policy SIZE_BASED_WRAP", "more"),
        ("--use_parallelism_config --parallelism_config_cp_size 2", "less"),
    ],
)
def test_what_is_not_modelled_is_a_limit(tmp_path: Path, option: str, could: str) -> None:
    """The nearest set-up is estimated."""
    line = f"accelerate launch --num_processes 8 {option} run_clm.py {MODEL} --block_size 64"
    reading = _read(line, tmp_path)
    assert could in [one.could for one in reading.limits]
    assert full_estimate(reading.run, replay=False).result.allocated_bytes > 0


@pytest.mark.parametrize(
    ("script", "options", "key"),
    [
        ("dpo.py", "", "trl.DPOTrainer's reference model"),
        ("grpo.py", "", "trl.GRPOTrainer's completions"),
    ],
)
def test_parts_that_an_engine_cannot_have(
    tmp_path: Path, script: str, options: str, key: str
) -> None:
    """They are left out of the estimate, and a limit says that it could be more."""
    launch = "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3"
    reading = _read(f"{launch} {script} {MODEL} {options}", tmp_path)
    assert [one.key[: len(key)] for one in reading.limits] == [key]
    assert reading.limits[0].could == "more"
    assert full_estimate(reading.run, replay=False).result.allocated_bytes > 0


def test_an_evaluation_runs_under_every_engine(tmp_path: Path) -> None:
    """Its batch is TrainingArguments' own, 8."""
    launch = "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3"
    options = "--eval_strategy steps --per_device_train_batch_size 1"
    reading = _read(f"{launch} sft.py {MODEL} {options}", tmp_path)
    evaluation = full_estimate(reading.run, replay=False).resolved.run.evaluation
    assert evaluation is not None
    assert evaluation.batch == 8
    assert not reading.limits
