"""`quick`: what a size means, what is chosen and said."""

from __future__ import annotations

import json

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import estimate
from tests.corpus import sampled

from .conftest import Command, above_the_last


def _run(command: Command, *words: str) -> dict[str, dict[str, object]]:
    run: dict[str, dict[str, object]] = command("quick", *words, "--format", "json").data["run"]
    return run


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ("7", "llama2-7b"),
        ("7B", "llama2-7b"),
        ("70b", "llama3.3-70b"),
        ("7e9", "llama2-7b"),
        ("7000000000", "llama2-7b"),
        ("70", "llama2-70b"),
        ("0.124", "gpt2"),
        ("124M", "gpt2"),
        ("175", "gpt3-175b"),
        ("qwen2.5-7b", "qwen2.5-7b"),
    ],
)
def test_a_size_means_a_well_known_model(command: Command, size: str, name: str) -> None:
    """A size near a well-known model's is that model as it is; a name is itself. A run
    that fits needs no remedies.
    """
    assert _run(command, size, "--gpu-mem", "5000")["model"] == {"name": name}


def test_a_size_between_models_is_scaled(command: Command) -> None:
    """A size far from every model takes the nearest one's layers and scales its parameters."""
    answer = command("quick", "20", "--long")
    assert "'20' is far from any known model" in answer.out
    assert _run(command, "20")["model"]["num_parameters"] == 20 * 10**9


def test_the_sequence_is_said(command: Command) -> None:
    """A long-context model is estimated at 4,096 tokens, and the report says so."""
    answer = command("quick", "llama3.1-8b")
    assert "sequence of 4,096 tokens (training.seq_len), not the model's 131,072" in answer.out


def test_a_short_model_keeps_its_own_length(command: Command) -> None:
    """A model's limit below 4,096 tokens is its sequence."""
    assert "micro-batch 1 × 1,024" in command("quick", "gpt2").out


def test_deepspeed_means_stage_2(command: Command) -> None:
    """The documented command: 7B on eight GPUs with DeepSpeed is ZeRO-2."""
    answer = command("quick", "7", "--gpus", "8", "--engine", "deepspeed")
    assert (answer.code, answer.err) == (0, "")
    assert "ZeRO-2 on 8 ×" in answer.out
    assert _run(command, "7", "--gpus", "8", "--engine", "deepspeed")["engine"]["zero_stage"] == 2


def test_set_wins_over_what_quick_chooses(command: Command) -> None:
    """--set has the last word."""
    words = ["7", "--gpus", "8", "--engine", "deepspeed", "--set", "engine.zero_stage=3"]
    assert _run(command, *words)["engine"]["zero_stage"] == 3


def test_megatron_gets_a_mesh_that_fits(command: Command) -> None:
    """The documented command: 70B on 64 GPUs with Megatron gets a TP within a node, then PP."""
    words = ["70", "--gpus", "64", "--gpu-mem", "80", "--engine", "megatron"]
    answer = command("quick", *words, "--long")
    assert answer.code == 0
    assert "Chosen: tensor parallel 8, pipeline parallel" in answer.out
    data = command("quick", *words, "--format", "json").data
    assert data["fits_on_gpu"] is True
    assert data["run"]["parallelism"]["sequence_parallel"] is True


def test_megatron_mesh_is_the_smallest(command: Command) -> None:
    """Half the pipeline of the mesh that was chosen would not fit."""
    run = _run(command, "70", "--gpus", "64", "--engine", "megatron")
    mesh = run["parallelism"]
    half = int(str(mesh["pipeline_parallel_size"])) // 2
    twice = int(str(mesh["data_parallel_size"])) * 2
    smaller = {**mesh, "pipeline_parallel_size": half, "data_parallel_size": twice}
    training = {**run["training"], "gradient_accumulation_steps": max(half, 1)}
    result = estimate({**run, "parallelism": smaller, "training": training})
    assert not result.fits_on_gpu


def test_a_mesh_that_was_given_stays(command: Command) -> None:
    """Nothing is chosen where --set says the parallelism."""
    words = ["7", "--gpus", "8", "--engine", "megatron"]
    given = ["--set", "parallelism.tensor_parallel_size=2"]
    assert _run(command, *words, *given)["parallelism"] == {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("size", "engine"),
    sampled(
        [(n, e) for n in ("7", "70") for e in ("fsdp", "deepspeed", "megatron", "pytorch")], keep=3
    ),
)
def test_reports_are_plain_and_narrow(command: Command, size: str, engine: str) -> None:
    """On every engine the report has no escape codes and no line above 80 columns."""
    answer = command("quick", size, "--gpus", "8", "--engine", engine)
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    assert max(map(len, above_the_last(answer.out))) <= 80


def test_why_is_a_command_that_runs(command: Command) -> None:
    """The last line can be copied: it explains the same run."""
    answer = command("quick", "gpt2", "--gpus", "2", "--set", "training.batch_size=2", "--long")
    text = (
        answer.out.partition("details: gpu-mem-calc ")[2].partition("\n\n")[0].replace("\\\n", " ")
    )
    again = command(*text.split())
    assert again.code == 0
    assert "micro-batch 2 × 1,024" in again.out
    assert "alive at the peak" in again.out


def test_card_by_name(command: Command) -> None:
    """--gpu takes a card's name and its real memory."""
    data = command("quick", "gpt2", "--gpu", "rtx-4090", "--format", "json").data
    assert data["gpu_memory_bytes"] < 24 * 2**30
    assert data["run"]["hardware"] == {"gpu": "rtx-4090", "num_gpus": 1}


def test_adapters_sit_on_a_16_bit_base(capsys: pytest.CaptureFixture[str]) -> None:
    """LoRA without a word on precision is what PEFT's users run; a word on it wins."""
    words = ["quick", "llama3.2-1b", "--format", "json", "--set", "training.lora.r=8"]
    assert main(words) == 0
    plain = json.loads(capsys.readouterr().out)
    assert any("bf16 base under autocast" in one for one in plain["assumed"])
    assert main([*words, "--set", "training.precision=bf16_mixed"]) == 0
    mixed = json.loads(capsys.readouterr().out)
    assert mixed["breakdown"]["model_params_gb"] > plain["breakdown"]["model_params_gb"]


@pytest.mark.parametrize(
    ("setting", "shown"),
    [("training.seq_len=131072", False), ("training.seq_len=2k", False), ("batch_size=2", True)],
)
def test_the_note_on_the_sequence_is_of_the_run(
    setting: str, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not printed beside another sequence."""
    assert main(["quick", "llama3.2-1b", "--set", setting]) == 0
    assert ("sequence of 4,096 tokens" in capsys.readouterr().out) == shown
