"""Arguments that say how a checkpoint is loaded and saved, as keys of a run file."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from gpu_mem_calculator.tools.deepspeed.read import run_file
from gpu_mem_calculator.tools.program_section import with_program
from gpu_mem_calculator.tools.read import read

FSDP = "accelerate launch --use_fsdp --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
RUN_CLM = (
    "--num_processes 8 run_clm.py --model_name_or_path Qwen/Qwen3-0.6B --dataset_name wikitext "
    "--dtype float32 --bf16 --output_dir o --do_train --block_size 512 "
    "--per_device_train_batch_size 1"
)
ABOUT = ("saving", "loading", "load_dtype", "resuming")
ZERO3: dict[str, Any] = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
MODEL = {"name": "llama3.2-1b"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", {"saving": "full_state_dict"}),
        ("--fsdp_version 2", "", {"saving": "sharded_on_host"}),
        ("--fsdp_state_dict_type SHARDED_STATE_DICT", "", {"saving": "sharded_on_host"}),
        (
            "--fsdp_version 2 --fsdp_cpu_ram_efficient_loading true",
            "--dtype bfloat16 --resume_from_checkpoint last",
            {
                "saving": "sharded_on_host",
                "loading": "first_rank_and_zeros",
                "load_dtype": "bf16",
                "resuming": "as_tool",
            },
        ),
    ],
)
def test_what_a_command_says(before: str, after: str, expected: dict[str, str]) -> None:
    """Accelerate's own default where it says nothing: whole with FSDP 1, sharded with FSDP 2."""
    file = read(shlex.split(f"{FSDP} {before} {RUN_CLM} {after}")).file
    training = file.training
    assert {key: one for key in ABOUT if (one := getattr(training, key))} == expected


def saved(tool: str, args: dict[str, Any], **program: Any) -> str | None:
    """How a program saves."""
    run = {
        "model": MODEL,
        "program": {"tool": tool, "args": args, **program},
        "hardware": {"gpu": "h200", "num_gpus": 8},
    }
    found: str | None = with_program(run, {})[0]["training"].get("saving")
    return found


@pytest.mark.parametrize(
    ("kind", "expected"), [(None, "full_state_dict"), ("sharded", "sharded_on_host")]
)
def test_how_lightning_saves(kind: str | None, expected: str) -> None:
    """FSDPStrategy gathers a full state dict unless told otherwise."""
    strategy = {"name": "fsdp", "auto_wrap_policy": ["LlamaDecoderLayer"]}
    strategy |= {} if kind is None else {"state_dict_type": kind}
    args = {"strategy": strategy, "batch_size": 1, "devices": 8}
    assert saved("lightning", args, data={"seq_len": 512}) == expected


def test_torchtitan_stages_what_it_saves_asynchronously() -> None:
    """Only where checkpoints are on."""
    args: dict[str, Any] = {"checkpoint.async_mode": "async"}
    assert saved("torchtitan", args) is None
    assert saved("torchtitan", {**args, "checkpoint.enable": True}) == "async"


def test_deepspeeds_file_says_whether_weights_are_gathered() -> None:
    """At stage 3 alone, in a file of its own and inside a program."""
    program = {"data": {"seq_len": 512}}
    for zero, expected in ((ZERO3, "full_state_dict"), ({**ZERO3, "stage": 2}, None)):
        config = {"zero_optimization": zero, "train_micro_batch_size_per_gpu": 1}
        assert run_file(config, model="llama3.2-1b").data["training"].get("saving") == expected
        assert saved("transformers.Trainer", {}, deepspeed=config, **program) == expected
