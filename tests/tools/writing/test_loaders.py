"""The tools' own loaders take what is written for them, and read the same values from it."""

from __future__ import annotations

import json
import shlex
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from .runs import Data, run_file, written

FSDP1 = {"type": "fsdp", "fsdp_version": 1, "use_orig_params": True}
RUNS: dict[str, Data] = {
    "one GPU": run_file(),
    "DDP": run_file(gpus=4, optimizer="adamw_8bit", label_smoothing=0.1),
    "LoRA": run_file(
        lora={"r": 4, "target_modules": "all-linear"}, activation_checkpointing="full"
    ),
    "FSDP 2": run_file({"type": "fsdp", "sharding_strategy": "shard_grad_op"}, gpus=4),
    "FSDP 1": run_file(FSDP1, gpus=4),
    "ZeRO-2": run_file({"type": "deepspeed", "zero_stage": 2}, gpus=8),
    "ZeRO-3": run_file(
        {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"}, gpus=8, precision="fp32"
    ),
}
ON_CPU = {"use_cpu": True, "bf16": False, "optim": "adamw_torch"}  # this machine has no GPU


class World:
    """Eight ranks, for DeepSpeed's configuration."""

    @staticmethod
    def get_rank() -> int:
        """The first."""
        return 0

    @staticmethod
    def get_world_size(group: Any = None) -> int:
        """All of them."""
        return 8


def arguments(text: str, kind: str) -> Any:
    """TrainingArguments from a text, by transformers' own parser."""
    transformers: Any = pytest.importorskip("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    if kind != "sh":
        data = yaml.safe_load(text) if kind == "yaml" else json.loads(text)
        (found,) = parser.parse_dict({**data, **ON_CPU})
        return found
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    words = words[words.index("train.py") + 1 :]
    more = [word for key, value in ON_CPU.items() for word in (f"--{key}", str(value))]
    (found,) = parser.parse_args_into_dataclasses([*words, *more])
    return found


@pytest.mark.parametrize("kind", ["yaml", "json", "sh"])
@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith("ZeRO")])
def test_transformers(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HfArgumentParser takes YAML, JSON and the command line."""
    monkeypatch.delenv("FSDP_CPU_RAM_EFFICIENT_LOADING", raising=False)
    found = arguments(written("transformers", RUNS[name], f"args.{kind}").text, kind)
    training = RUNS[name]["training"]
    assert found.per_device_train_batch_size == training["batch_size"]
    assert found.gradient_accumulation_steps == training["gradient_accumulation_steps"]
    assert found.gradient_checkpointing == ("activation_checkpointing" in training)
    assert found.label_smoothing_factor == training.get("label_smoothing", 0)
    if name == "FSDP 2":
        assert found.fsdp_plugin_args["fsdp_version"] == 2
        assert found.fsdp_plugin_args["reshard_after_forward"] is False


@pytest.mark.parametrize("name", RUNS)
def test_accelerate(name: str, tmp_path: Path) -> None:
    """`accelerate launch` takes its file, with DeepSpeed's JSON beside it."""
    launch: Any = pytest.importorskip("accelerate.commands.launch")
    made = written("accelerate", RUNS[name])
    path = tmp_path / made.filename
    path.write_text(made.text, encoding="utf-8")
    config = import_module("accelerate.commands.config").load_config_from_file(str(path))
    assert config.num_processes == RUNS[name]["hardware"]["num_gpus"]
    args = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, _, mixed = launch._validate_launch_command(args)
    assert (args.use_fsdp, args.use_deepspeed) == ("FSDP" in name, "ZeRO" in name)
    if args.use_fsdp:
        assert int(args.fsdp_version) == int(name[-1])
    if made.beside:
        assert args.deepspeed_config_file in made.beside
        assert not mixed  # Accelerate refuses a precision beside DeepSpeed's file
        zero = json.loads(made.beside[args.deepspeed_config_file])["zero_optimization"]
        assert zero["stage"] == int(name[-1])
    elif args.use_deepspeed:
        assert args.zero_stage == int(name[-1])


@pytest.mark.parametrize("name", ["ZeRO-2", "ZeRO-3"])
def test_deepspeed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeedConfig takes its JSON: the batch sizes agree."""
    pytest.importorskip("deepspeed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = import_module("deepspeed.runtime.config")
    monkeypatch.setattr(module, "dist", World)
    found = module.DeepSpeedConfig(json.loads(written("deepspeed", RUNS[name]).text))
    assert found.zero_optimization_stage == int(name[-1])
    sizes = (found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps)
    assert (*sizes, found.train_batch_size) == (2, 4, 64)


@pytest.mark.parametrize("name", ["one GPU", "LoRA", "FSDP 1"])
def test_trl(name: str, tmp_path: Path) -> None:
    """`trl sft` takes its file, and passes the launcher's keys on."""
    pytest.importorskip("trl")
    parser = import_module("trl.scripts.sft").make_parser()
    path = tmp_path / "sft.yaml"
    text = written("trl", RUNS[name]).text
    path.write_text(text.replace("bf16: true", "bf16: false\nuse_cpu: true"), encoding="utf-8")
    _, training, model, _, rest = parser.parse_args_and_config(
        ["--config", str(path)], return_remaining_strings=True
    )
    assert training.max_length == 64
    assert training.per_device_train_batch_size == 2
    assert model.model_name_or_path == "MODEL"
    assert model.use_peft == (name == "LoRA")
    assert rest[0] in ("--num_processes", "--accelerate_config")
