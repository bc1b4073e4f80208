"""`check`: a command, a script or a file is read, nothing is run, and the exit code decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.catalog import find
from gpu_mem_calculator.cli import this_machine
from gpu_mem_calculator.cli.check import separated
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.tools.logs.nvidia_smi import read_cards

from .conftest import Command

SERVER = ("llama-server", "-m", "Llama-3.1-8B-Instruct-Q4_K_M.gguf", "-c", "8192", "--fit", "off")


@pytest.fixture(autouse=True)
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no GPU, whatever it has."""
    monkeypatch.setattr(this_machine, "QUERY", ("no-such-program",))


def test_a_server_that_fits(command: Command) -> None:
    """Exit code 0, the verdict, and what was read."""
    answer = command("check", "--gpu", "4090", *SERVER)
    assert (answer.code, answer.err) == (0, "")
    assert "fits" in answer.out
    assert "read as llama-server" in answer.out


def test_a_server_that_does_not(command: Command) -> None:
    """Exit code 1; --set changes what the command says."""
    words = ("--gpu", "4090", "--set", "inference.max_seq_len=2000000")
    assert command("check", *words, *SERVER).code == 1


def test_a_run_file_is_checked_too(command: Command, tmp_path: Path) -> None:
    """With the card of the options."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"model": {"name": "gpt2"}, "training": {"seq_len": 64}}))
    assert command("check", "--gpu", "4090", path).code == 0
    assert command("check", "--gpu-mem", "1", path).code == 1


def test_unknown_tools_cannot_be_told(command: Command) -> None:
    """Exit code 3, and the tools that are known."""
    answer = command("check", "make", "coffee")
    assert answer.code == 3
    assert "cannot tell: 'make' starts no tool that is known" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no command to check"),
        (("--gpu", "rtx-9999", *SERVER), "is not a known card"),
        (("nowhere.yaml",), "no such file"),
        (("llama-server", "-m", "x.gguf", "--no-such-option"), "--no"),
        (("python", "-c", "pass"), "python -c"),
        (
            ("--seq-len", "1024", "vllm", "serve", "gpt2"),
            "--seq-len is not an option of check; use --set seq_len=1024",
        ),
    ],
)
def test_bad_input_is_a_sentence(command: Command, words: tuple[str, ...], said: str) -> None:
    """Exit code 2."""
    answer = command("check", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == ""


def test_a_command_without_a_model_is_asked_for_it(command: Command) -> None:
    """In the words of the command line."""
    answer = command("check", "--gpu", "4090", "trl", "sft", "--dataset_name", "x")
    assert answer.code == 3
    assert "nothing that was read names the model; add --set model.name=" in answer.err


def test_our_options_stand_before_the_command(command: Command) -> None:
    """One that is after it is the command's, and the sentence says so."""
    answer = command("check", "vllm", "serve", "Qwen/Qwen3-8B", "--gpu", "h100")
    assert answer.code == 2
    assert "write it before: check --gpu" in answer.err


def test_json_has_everything(command: Command) -> None:
    """The verdict, the keys by effect, the run file and the result."""
    data: Any = command("check", "--format", "json", "--gpu", "4090", *SERVER).data
    assert (data["verdict"], data["exit_code"]) == ("fits", 0)
    assert "memory" in data["keys"].values()
    assert data["run"]["inference"]["max_seq_len"] == 8192
    assert data["result"]["fits_on_gpu"]


def test_without_a_card_nobody_can_tell(command: Command) -> None:
    """Exit code 3, also for what would fit on the largest card; the answer says how to name it."""
    answer = command("check", *SERVER)
    assert answer.code == 3
    assert answer.out.startswith("cannot tell: ")
    assert "--gpu NAME" in answer.out


def test_images_of_a_vision_model_decide(command: Command) -> None:
    """They are not counted: what fits without them is not said to fit."""
    words = ("--model_name_or_path", "Qwen/Qwen2-VL-2B-Instruct", "--dataset_name", "x")
    words = ("trl", "sft", *words, "--use_peft", "--load_in_4bit")
    answer = command("check", "--gpu", "h100", *words)
    assert answer.code == 3
    assert answer.out.startswith("cannot tell: ")
    assert "open: images" in answer.out
    assert command("check", "--gpu-mem", "2", *words).code == 1


def test_options_before_the_command_are_ours() -> None:
    """What follows the first other word is the command's, also `--` and the same names."""
    words = ["--gpu", "h100", "--run", "vllm", "serve", "x", "--gpu", "y", "--", "z"]
    assert separated(words) == ["--gpu", "h100", "--run", "--", *words[3:]]
    assert separated(["--", "trl", "sft"]) == ["--", "trl", "sft"]


def test_this_machines_card_is_the_default() -> None:
    """nvidia-smi's smallest card, with its memory."""
    head = "name, memory.total [MiB]\n"
    text = f"{head}NVIDIA H100 80GB HBM3, 81559\nNVIDIA GeForce RTX 4090, 24564\n"
    section = this_machine.card_section(read_cards(text))
    row = find("gpus", "rtx-4090")
    assert row is not None
    assert section == {"gpu": "rtx-4090", "gpu_memory_bytes": row["memory_bytes"]}
    strange = read_cards(f"{head}Strange Card, 1024\n")
    assert this_machine.card_section(strange) == {"gpu_memory_bytes": 1024 * MIB}


def test_deepspeeds_json_is_checked_with_the_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its number of ranks is that of the GPUs, and the model is given beside it."""
    path = tmp_path / "ds_config.json"
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    data = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    path.write_text(json.dumps({**data, "zero_optimization": zero}), encoding="utf-8")
    options = ["--gpu", "h100", "--gpus", "8"]
    assert main(["check", *options, str(path)]) == 3
    assert "--set model.name=owner/model" in capsys.readouterr().err
    given = ["--format", "json", "--set", "model.name=llama2-7b"]
    assert main(["check", *options, *given, str(path)]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert run["parallelism"] == {"data_parallel_size": 8}
    assert run["engine"]["reduce_bucket_size"] == 4096 * 4096


@pytest.mark.parametrize("words", [("pod.yaml", "--long"), ("vllm", "serve", "gpt2", "--long")])
def test_an_option_of_ours_behind_the_command_is_said(
    command: Command, words: tuple[str, ...]
) -> None:
    """Instead of what the command's tool makes of it."""
    answer = command("check", "--gpu", "h100", *words)
    assert answer.code == 2
    assert "--long after the command is the command's; write it before" in answer.err


def test_a_server_uses_the_gpus_that_its_command_says(command: Command) -> None:
    """Where there are more, the first line says it."""
    given = ("check", "--gpu", "h100-sxm", "--format", "json")
    served = ("vllm", "serve", "Qwen/Qwen3-8B")
    one, four = (json.loads(command(*given, *more, *served).out) for more in ((), ("--gpus", "4")))
    assert four["result"]["decisive"][0] == "the command uses 1 of 4 GPUs"
    assert four["result"]["device_bytes"] == one["result"]["device_bytes"]


def test_a_limit_of_host_ram_that_decides_is_raised_first(command: Command, tmp_path: Path) -> None:
    """Its figures are told apart, the verdict is whole, and one release is named."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {
            "containers": [
                {
                    "name": "a",
                    "image": "vllm/vllm-openai:v0.10.1",
                    "command": ["vllm", "serve", "Qwen/Qwen3-14B"],
                    "args": [
                        "--max-model-len",
                        "32768",
                        "--swap-space",
                        "16",
                        "--cpu-offload-gb",
                        "10",
                    ],
                    "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}},
                }
            ]
        },
    }
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod), encoding="utf-8")
    answer = command("check", "--gpu", "a100-40gb-sxm", path)
    words = " ".join(answer.out.split())
    assert answer.code == 1
    assert "16.4 GiB of host RAM a node while weights are loaded, of 16.0" in words
    assert "GiB free" in words.partition("tokens each, ")[2][:40]
    remedy = next(row for row in answer.out.splitlines() if row.startswith("fits with"))
    assert "GiB of host RAM (resources.limits.memory)" in remedy
    assert "read as vllm serve:" in words


def test_more_gpus_for_ollama_keep_its_context(command: Command) -> None:
    """They bring all layers onto GPUs; the first line says which of several cards is shown."""
    answer = command("check", "--gpu", "3060", "ollama", "run", "llama3.3:70b")
    assert "all layers on GPUs with 8 GPUs: 1 user at 4,096 tokens" in answer.out
    assert "RTX 3060 8GB" in " ".join(answer.out.splitlines()[:2])
    spark = ("check", "--gpu", "dgx-spark", "--node-ram", "64", "ollama", "run", "gpt-oss:120b")
    words = command(*spark).out
    assert "GPUs" not in words
    assert "mxfp4 weights with bf16 beside" in words
    assert "of memory (--node-ram)" in words
    assert "largest context" not in words
