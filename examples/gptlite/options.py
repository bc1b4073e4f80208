"""The command line of train.py and DeepSpeed's JSON, both checked before anything starts.

What does not go together is a ValueError with one sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import deepspeed
from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys
from gptlite import SIZES

from gpu_mem_calculator.tools.deepspeed import read as deepspeed_reader

CHECKPOINTING = {
    "partition_activations": "partition_activations",
    "contiguous_memory_optimization": "contiguous_checkpointing",
    "cpu_checkpointing": "checkpoint_in_cpu",
    "synchronize_checkpoint_boundary": "synchronize",
    "profile": "profile",
}
"""Keys of the file's `activation_checkpointing`, and what deepspeed.checkpointing.configure calls
them."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """As everything else that is refused."""
        raise ValueError(message)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def fraction(text: str) -> float:
    """A part of something that is not all of it."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 up to, but not including, 1")
    return value


def parser() -> argparse.ArgumentParser:
    """Every option; those of DeepSpeed are added by DeepSpeed."""
    found = Parser(
        prog="train.py",
        allow_abbrev=False,
        description="Train GPT-lite, or a model and data set of your own (--task), with DeepSpeed.",
    )
    add = found.add_argument
    add("--local_rank", type=int, default=-1, help="set by the launcher")
    add(
        "--task",
        default="text_task",
        metavar="MODULE",
        help="where get_model_and_dataset(options) is (default: %(default)s)",
    )
    add("--text", metavar="SOURCE", help="a path or an http(s) address (default: what ships)")
    for name, size in SIZES.items():
        kind = fraction if isinstance(size, float) else positive
        add(
            f"--{name}",
            type=kind,
            metavar="X" if kind is fraction else "N",
            help=f"(default: {size})",
        )
    add(
        "--validation",
        action="store_true",
        help="hold out the last tenth of the data, and tell its loss at the end",
    )
    _add_run(add)
    _add_parallel(add)
    return deepspeed.add_config_arguments(found)


def _add_run(add: Any) -> None:
    """How long, from where, and what is kept."""
    add("--steps", type=positive, default=100, metavar="N", help="in all, also when resumed")
    add("--seed", type=int, default=0)
    add("--log_every", type=positive, default=10, metavar="N", help="steps between two lines")
    add("--save", metavar="DIR", help="where checkpoints are kept; one is written at the end")
    add("--save_every", type=positive, metavar="N", help="and one every N steps")
    add("--resume", action="store_true", help="go on from the latest checkpoint in --save")
    add("--report", metavar="FILE", help="write what was measured on every rank, as JSON")
    add(
        "--torch_adam",
        action="store_true",
        help="torch's AdamW in the place of DeepSpeed's own, which has to be compiled first",
    )
    add("--no_sample", action="store_true", help="end without a sample of what was learnt")


def _add_parallel(add: Any) -> None:
    """What takes memory away from a GPU, and the estimate of it."""
    add(
        "--activation_checkpointing",
        action="store_true",
        help="keep each block's input alone and run the block again on the way back",
    )
    add(
        "--partition_activations",
        action="store_true",
        help="cut what is kept over the tensor-parallel ranks",
    )
    add(
        "--contiguous_checkpointing",
        action="store_true",
        help="and keep it in buffers made once a step",
    )
    add("--pipeline", action="store_true", help="cut the layers into stages, one a process")
    add(
        "--pipeline_spec_layers",
        action="store_true",
        help="the same, and each process builds its own layers only",
    )
    add("--stages", type=positive, metavar="N", help="of the pipeline (default: all processes)")
    add(
        "--run_memory_estimation_only",
        action="store_true",
        help="print what parameters and buffers take, and end",
    )
    add("--num_gpus", type=positive, metavar="N", help="a node, of that estimate (default: 8)")
    add("--num_nodes", type=positive, metavar="N", help="of that estimate (default: 1)")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, with what the launcher says of this process.

    `deepspeed` and `torchrun` set these variables; `python` alone is one process.
    """
    found = parser().parse_args(arguments)
    found.rank = int(os.environ.get("RANK", "0"))
    found.ranks = int(os.environ.get("WORLD_SIZE", "1"))
    found.local_rank = int(os.environ.get("LOCAL_RANK", str(max(found.local_rank, 0))))
    found.pipeline = found.pipeline or found.pipeline_spec_layers
    return found


def check(options: argparse.Namespace) -> None:
    """Read DeepSpeed's file into `options.config`, and refuse what cannot be trained."""
    refuse_flags(options)
    if options.report and not Path(options.report).absolute().parent.is_dir():
        raise ValueError(f"--report {options.report}: there is no such folder; make it first")
    if options.deepspeed_config is None:
        shipped = sorted(one.name for one in (Path(__file__).parent / "configs").glob("*.json"))
        raise ValueError(f"--deepspeed_config FILE is needed; configs/ has {', '.join(shipped)}")
    options.config = read_config(options.deepspeed_config)
    _refuse_auto(options.config)
    options.zero_stage = options.config.get("zero_optimization", {}).get("stage", 0)
    options.stages = (options.stages or options.ranks) if options.pipeline else 1
    _refuse_pipeline(options)
    deepspeed_reader.read(options.config, num_gpus=options.ranks, model_ranks=options.stages)
    if options.torch_adam:
        use_torch_adam(options.config)
    options.checkpointing = checkpointing(options)
    _refuse_device(options)


def _refuse_auto(section: dict[str, Any]) -> None:
    """Refuse "auto", which Hugging Face's Trainer fills in: there is none here."""
    for key, value in section.items():
        if value == "auto":
            raise ValueError(f'{key}="auto" is filled in by the Trainer; write the value itself')
        if isinstance(value, dict):
            _refuse_auto(value)


def read_config(path: str) -> dict[str, Any]:
    """DeepSpeed's file as it is written; as DeepSpeed does, a key that stands twice is refused."""
    try:
        found = json.loads(
            Path(path).read_text(encoding="utf-8"),
            object_pairs_hook=dict_raise_error_on_duplicate_keys,
        )
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object: begin it with {{")
    return found


def use_torch_adam(config: dict[str, Any]) -> None:
    """Write `torch_adam` into a config, as a file can have it, too."""
    if "offload_optimizer" in config.get("zero_optimization", {}):
        raise ValueError(
            "--torch_adam does not go with zero_optimization.offload_optimizer, which "
            "steps with DeepSpeed's CPU Adam: leave one out"
        )
    optimizer = config.get("optimizer", {})
    if str(optimizer.get("type")).lower() not in ("adam", "adamw"):
        raise ValueError(
            f"--torch_adam needs an optimizer of type Adam or AdamW, not "
            f"{optimizer.get('type')}: leave it out"
        )
    optimizer["params"] = {**optimizer.get("params", {}), "torch_adam": True}


def refuse_flags(options: argparse.Namespace) -> None:
    """Flags that need another one."""
    estimated = options.run_memory_estimation_only
    needs = (
        ("deepscale", False, "--deepspeed"),
        ("deepscale_config", False, "--deepspeed_config"),
        ("num_gpus", estimated, "--run_memory_estimation_only (a launcher has its own)"),
        ("num_nodes", estimated, "--run_memory_estimation_only (a launcher has its own)"),
        ("stages", options.pipeline, "--pipeline"),
        ("save_every", options.save, "--save DIR"),
        ("resume", options.save, "--save DIR"),
    )
    for name, there, needed in needs:
        if getattr(options, name) and not there:
            verb = "is an old name: write" if name.startswith("deepscale") else "needs"
            raise ValueError(f"--{name} {verb} {needed}")


def _refuse_pipeline(options: argparse.Namespace) -> None:
    """What a pipeline cannot do."""
    if options.pipeline and options.zero_stage > 1:
        raise ValueError(
            f"zero_optimization.stage={options.zero_stage} does not go with a "
            "pipeline, which adds up gradients over micro-batches that ZeRO 2 and 3 "
            "cut after each: use stage 0 or 1, or leave out --pipeline"
        )
    if options.ranks % options.stages:
        raise ValueError(
            f"--stages {options.stages} does not divide {options.ranks} processes: "
            f"use a divisor of {options.ranks}"
        )


def checkpointing(options: argparse.Namespace) -> dict[str, bool] | None:
    """How activations are checkpointed: the file's section, and the command line over it."""
    section = options.config.get("activation_checkpointing")
    asked = [
        name
        for name in ("partition_activations", "contiguous_checkpointing")
        if getattr(options, name)
    ]
    if section is None and not options.activation_checkpointing:
        if asked:
            raise ValueError(f"--{asked[0]} needs --activation_checkpointing")
        return None
    found = {ours: bool((section or {}).get(key, False)) for key, ours in CHECKPOINTING.items()}
    found |= dict.fromkeys(asked, True)
    if found["contiguous_checkpointing"] and not found["partition_activations"]:
        raise ValueError(
            "contiguous memory for checkpoints needs them partitioned: add partition_activations"
        )
    return found


def _refuse_device(options: argparse.Namespace) -> None:
    """What the accelerator of this machine cannot do."""
    accelerator = deepspeed.accelerator.get_accelerator()
    name = accelerator.device_name()
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
    if options.config.get("fp16", {}).get("enabled") and not accelerator.is_fp16_supported():
        raise ValueError(f"fp16 cannot be trained on this {name}: use bf16")
    if name != "cpu" and here > accelerator.device_count():
        raise ValueError(
            f"{here} processes share {accelerator.device_count()} {name} device(s), "
            "and each needs its own: start fewer"
        )


def tell(sentence: str) -> None:
    """A line on stderr, once in a run."""
    if os.environ.get("RANK", "0") == "0":
        print(f"train.py: {sentence}", file=sys.stderr, flush=True)
