"""`convert` and --export: what is written where, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_mem_calculator.cli.parser import OPTIONS
from gpu_mem_calculator.tools.writing.writers import WRITERS

from .conftest import Command

RUN: dict[str, Any] = {
    "model": {"name": "llama3.2-1b"},
    "training": {"batch_size": 2, "gradient_accumulation_steps": 4, "seq_len": 1024},
    "engine": {"type": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"},
    "hardware": {"gpu": "h100", "num_gpus": 8},
}


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The path of a run file."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUN), encoding="utf-8")
    return str(path)


def test_the_help_names_every_format() -> None:
    """In the order of the table."""
    formats = next(row["help"] for row in OPTIONS["convert"] if row["names"] == "-t --to")
    named = formats.replace(";", ",").replace(" (run files)", "").split(", ")
    assert [one.strip() for one in named] == list(WRITERS)


def test_stdout_has_the_file_alone(command: Command, run: str) -> None:
    """JSON has no comments: what the program sets, and how it is started, is on stderr."""
    answer = command("convert", run, "--to", "deepspeed")
    data = json.loads(answer.out)
    assert data["train_batch_size"] == 2 * 4 * 8
    assert "the program itself sets model.name='meta-llama/Llama-3.2-1B'" in answer.err
    assert "training.seq_len=1024" in answer.err
    assert "start: deepspeed --num_gpus 8 train.py" in answer.err


def test_a_file_is_written_with_those_that_it_names(
    command: Command, run: str, tmp_path: Path
) -> None:
    """A file beside it that is another one is never replaced."""
    path, beside = tmp_path / "accelerate.yaml", tmp_path / "ds_config.json"
    answer = command("convert", run, "--to", "accelerate", "--output", str(path))
    assert (answer.code, answer.out) == (0, "")
    assert yaml.safe_load(path.read_text())["deepspeed_config"]["deepspeed_config_file"]
    assert json.loads(beside.read_text())["zero_optimization"]["stage"] == 2
    assert command("convert", run, "--to", "accelerate", "--output", str(path)).code == 0
    beside.write_text("{}")
    answer = command("convert", run, "--to", "accelerate", "--output", str(path))
    assert answer.code == 2
    assert "ds_config.json is there already" in answer.err
    assert beside.read_text() == "{}"


@pytest.mark.parametrize(
    ("ending", "begins"), [("json", "{"), ("yaml", "# start: torchrun"), ("sh", "# start: bash")]
)
def test_the_ending_chooses_the_kind(
    command: Command, run: str, tmp_path: Path, ending: str, begins: str
) -> None:
    """TrainingArguments as JSON, as YAML or as a command."""
    path = tmp_path / f"args.{ending}"
    answer = command("convert", run, "--to", "transformers", "-o", str(path))
    assert answer.code == 0
    assert path.read_text().startswith(begins)
    assert ("from_pretrained" in answer.err) == (ending == "json")  # JSON has no comments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "acelerate"], "did you mean 'accelerate'?"),
        (["--to", "vllm"], "the run trains a model, and vLLM serves one; choose deepspeed"),
        (["--to", "deepspeed", "--set", "engine.type=fsdp"], "is not an option of PyTorch FSDP"),
        ([], "convert needs -t/--to"),
        (["--to", "trl", "--engine", "megatron"], "Megatron-LM is not started by TRL"),
    ],
)
def test_refusals(command: Command, run: str, words: list[str], said: str) -> None:
    """One sentence on stderr, and nothing on stdout."""
    if "megatron" in words:
        run = str(Path(run).with_name("plain.json"))
        Path(run).write_text(json.dumps({"model": RUN["model"]}))
    answer = command("convert", run, *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_command_in_quotes(command: Command) -> None:
    """From one server to another: TGI's share is of the card, as vLLM's."""
    line = "text-generation-launcher --model-id meta-llama/Llama-3.1-8B --cuda-memory-fraction 0.8"
    answer = command("convert", line, "--to", "vllm")
    assert answer.code == 0
    assert "vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.8" in answer.out
    assert "inference.gpu_memory_utilization" not in answer.out


def test_a_file_of_one_tool_for_another(command: Command, run: str, tmp_path: Path) -> None:
    """TRL's file becomes LLaMA-Factory's, and a run file again: the same batch and length."""
    path = str(tmp_path / "sft.yaml")
    assert command("convert", run, "--to", "trl", "-o", path).code == 0
    found = yaml.safe_load(command("convert", path, "--to", "llamafactory").out)
    assert (found["per_device_train_batch_size"], found["cutoff_len"]) == (2, 1024)
    back = json.loads(command("convert", path, "--to", "json").out)
    assert back["program"]["args"]["gradient_accumulation_steps"] == 4
    assert back["hardware"]["num_gpus"] == 8


def test_export_beside_the_verdict(command: Command, run: str) -> None:
    """stdout has the file, stderr the verdict."""
    answer = command("calculate", run, "--export", "yaml")
    assert yaml.safe_load(answer.out) == RUN
    assert "run.json fits" in answer.err
    answer = command("quick", "llama3.2-1b", "--gpu", "4090", "--lora", "--export", "trl")
    assert yaml.safe_load(answer.out)["lora_r"] == 16
    assert "llama3.2-1b fits" in answer.err


def test_export_of_a_server(command: Command) -> None:
    """The format names the server where no --engine does."""
    answer = command("infer", "llama3.1-8b", "--gpu", "h100", "--export", "sglang")
    assert answer.out.endswith(
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B\n"
    )
    assert "fits" in answer.err
    answer = command("infer", "llama3.1-8b", "--engine", "vllm", "--export", "sglang")
    assert "fits" not in answer.err  # that would be about vLLM


@pytest.mark.parametrize(
    "words", [["--long"], ["--check"], ["--format", "html"]], ids=lambda words: words[0]
)
def test_export_has_no_answer(command: Command, run: str, words: list[str]) -> None:
    """Options of an answer are refused beside it."""
    answer = command("calculate", run, "--export", "yaml", *words)
    assert (answer.code, answer.out) == (2, "")
    assert f"without an answer; leave {words[0]} out" in answer.err


def test_a_model_alone_is_a_server(command: Command) -> None:
    """With the card that is said; options of a training run are refused."""
    answer = command("convert", "Qwen/Qwen3-8B", "--to", "sglang", "--gpu", "h100", "--gpus", "2")
    assert answer.code == 0
    assert answer.out.endswith("--model-path Qwen/Qwen3-8B --tp-size 2\n")
    answer = command("convert", "llama3.1-8b", "--to", "vllm", "--batch-size", "3")
    assert answer.code == 2
    assert "vLLM serves a model, and the options train one; leave them out" in answer.err
