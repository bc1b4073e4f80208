"""Everyday options: they win over the run file, contradictions are one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli.parser import OPTIONS
from gpu_mem_calculator.runfile.keys.recipes import RECIPES

from .conftest import Command

FILE = {
    "model": {"name": "llama3.2-1b"},
    "training": {"seq_len": 512, "dtype": "fp16", "activation_checkpointing": "none"},
    "engine": {"type": "fsdp", "sharding_strategy": "full_shard"},
    "parallelism": {"data_parallel_size": 8},
    "hardware": {"num_gpus": 8, "num_nodes": 1, "gpu_memory_gb": 80},
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A run file on disk."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(FILE))
    return str(path)


def _run(command: Command, *words: str) -> dict[str, Any]:
    answer = command(*words, "--format", "json")
    assert answer.code == 0, answer.err
    run: dict[str, Any] = answer.data["run"]
    return run


@pytest.mark.parametrize(
    ("words", "section", "ours"),
    [
        ("--seq-len 1k", "training", {"seq_len": 1024}),
        ("--batch-size 2", "training", {"batch_size": 2}),
        ("--grad-accum 4", "training", {"gradient_accumulation_steps": 4}),
        ("--checkpointing", "training", {"activation_checkpointing": "full"}),
        ("--checkpointing selective", "training", {"activation_checkpointing": "selective"}),
        ("--optimizer adamw_torch_fused", "training", {"optimizer_implementation": "fused"}),
        ("--precision bf16", "training", {"precision": "bf16_mixed"}),
        ("--lora 8", "training", {"precision": "bf16_pure", "activation_checkpointing": "full"}),
        ("--lora --batch-size 4 --checkpointing none", "training", {"batch_size": 4}),
        ("--gpu 4090", "hardware", {"gpu": "4090", "gpu_memory_gb": None}),
        ("--gpus 2", "hardware", {"num_gpus": 2}),
        ("--gpus 16 --nodes 2", "hardware", {"num_gpus": 16, "num_nodes": 2}),
        ("--gpu-mem 24GB", "hardware", {"gpu_memory_gb": 24}),
        ("--offload --seq-len 2k", "engine", {"cpu_offload": True}),
        ("--engine zero3", "engine", {"type": "deepspeed", "zero_stage": 3}),
        ("--engine deepspeed --zero 1", "engine", {"type": "deepspeed", "zero_stage": 1}),
        (
            "--engine zero3 --offload nvme",
            "engine",
            {"offload_optimizer": "nvme", "offload_param": "nvme"},
        ),
    ],
)
def test_an_option_wins_over_the_file(
    command: Command, file: str, words: str, section: str, ours: dict[str, Any]
) -> None:
    """Keys that would contradict it, such as the options of another engine, are left out."""
    run = _run(command, "calculate", file, *words.split())
    assert {key: run[section].get(key) for key in ours} == ours


def test_set_wins_over_an_option(command: Command) -> None:
    """--set has the last word, also over a recipe."""
    words = ["--qlora", "--set", "training.optimizer=adamw", "--set", "training.lora.r=4"]
    training = _run(command, "quick", "llama3.2-1b", *words)["training"]
    assert (training["optimizer"], training["lora"]["r"]) == ("adamw", 4)
    assert training["quantization"] == "nf4"


@pytest.mark.parametrize(
    ("words", "level"),
    [("--recompute", "full"), ("--recompute selective", "selective"), ("--no-recompute", "none")],
)
def test_recompute_is_another_word_for_checkpointing(
    command: Command, words: str, level: str
) -> None:
    """As Megatron-LM's users say it."""
    training = _run(command, "quick", "gpt2", *words.split())["training"]
    assert training["activation_checkpointing"] == level


def test_a_recipe_is_listed_as_assumed(command: Command) -> None:
    """What nothing else sets; the rest is not assumed."""
    words = ["llama3.2-1b", "--qlora", "--optimizer", "adamw", "--format", "json"]
    said = " ".join(command("quick", *words).out.split())
    assert "QLoRA: an nf4 base" in said or "nf4" in said
    assert "paged 8-bit AdamW" not in said


def test_the_saved_run_is_the_same_run(command: Command, tmp_path: Path) -> None:
    """`calculate` on the saved file gives the same answer."""
    saved = tmp_path / "saved.json"
    words = ["quick", "llama3.2-1b", "--qlora", "--gpu", "4090", "--save-run", str(saved)]
    first = command(*words, "--format", "json")
    assert f"wrote {saved}\n" in first.err
    again = command("calculate", str(saved), "--format", "json")
    assert again.data["needs_bytes"] == first.data["needs_bytes"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--zero 3", "--zero 3 is DeepSpeed's, and the engine is PyTorch FSDP"),
        ("--zero 3 --engine zero2", "--engine zero2 contradicts --zero 3"),
        ("--lora --qlora", "--lora and --qlora are two recipes"),
        ("--lora --recipe full", "--lora contradicts --recipe full"),
        ("--offload nvme", "--offload nvme is DeepSpeed's; FSDP has --offload cpu"),
        ("--engine pytorch --offload", "PyTorch DDP has no offload; add --zero 3"),
        ("--precision int3", "is not one of bf16, fp16, fp32"),
        ("--quiet", "--quiet is for --check"),
        ("--margin 5%", "--margin is for --check"),
        ("--seq-len 1e99", "must be a whole number, such as 4096, 8k or 128k"),
        ("--gpus 99999999999", "must be a whole number of at most 1,000,000,000"),
        ("--preset gpt2", "name two runs; give one"),
    ],
)
def test_a_contradiction_is_one_sentence(
    command: Command, file: str, words: str, sentence: str
) -> None:
    """On stderr, with exit code 2."""
    answer = command("calculate", file, *words.split())
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert sentence in answer.err


def test_errors_are_json_where_json_is_asked_for(command: Command, file: str) -> None:
    """The sentences are on stderr, too."""
    answer = command("calculate", file, "--zero", "3", "--format", "json")
    assert answer.code == 2
    (problem,) = answer.data["error"]["problems"]
    assert answer.data["error"]["exit_code"] == 2
    assert answer.err == f"gpu-mem-calc: {problem}\n"


@pytest.mark.parametrize(("margin", "code"), [("1", 0), ("1%", 0), ("76GiB", 1), ("96%", 1)])
def test_a_margin_is_kept_free(command: Command, margin: str, code: int) -> None:
    """--quiet leaves the sentence alone."""
    words = ["quick", "gpt2", "--gpu", "h100", "--check", "--quiet", "--margin", margin]
    answer = command(*words)
    assert answer.code == code
    assert answer.out.count("\n") == 1


def test_experts_are_sharded_over_all_gpus(command: Command) -> None:
    """--ep without a number; on one GPU it is refused."""
    words = ["infer", "mixtral-8x7b", "--gpu", "h100", "--ep"]
    run = _run(command, *words, "--gpus", "4")
    assert run["inference"]["expert_parallel_size"] == 4
    assert "add --gpus 8" in command(*words).err


def test_the_choices_of_the_option_are_the_recipes() -> None:
    """A new recipe is also a word of --recipe."""
    choices = next(row["choices"] for row in OPTIONS["training"] if row["names"] == "--recipe")
    assert choices == list(RECIPES), "add the recipe to --recipe in cli/options.json"
