"""Cards that others use, too: every door goes by what is free, and `check` says who holds what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.cli import this_machine

from .conftest import Command

SIZES = ", ".join(f"memory.{name} [MiB]" for name in ("total", "reserved", "used", "free"))
HEAD = f"index, uuid, name, {SIZES}"
APPS = (
    "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-a, 4711, /usr/bin/python3, 60000 MiB"
)
CARDS = f"""{HEAD}
0, GPU-a, NVIDIA H100 80GB HBM3, 81559 MiB, 551 MiB, 60100 MiB, 20908 MiB
1, GPU-b, NVIDIA H100 80GB HBM3, 81559 MiB, 551 MiB, 4 MiB, 81004 MiB
"""
SERVES = ("vllm", "serve", "Qwen/Qwen3-8B")
TRAINS = ("trl", "sft", "--model_name_or_path", "Qwen/Qwen2.5-1.5B", "--dataset_name", "x")


@pytest.fixture
def pasted(tmp_path: Path) -> Path:
    """A file that nvidia-smi wrote: GPU 0 is used, GPU 1 is not."""
    path = tmp_path / "smi.csv"
    path.write_text(f"{CARDS}{APPS}\n")
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with these cards."""
    path = tmp_path / "nvidia-smi"
    path.write_text(
        f"#!/bin/sh\ncase $1 in *compute-apps*) echo '{APPS}';; *) echo '{CARDS}';; esac\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(this_machine, "QUERY", (str(path), *this_machine.QUERY[1:]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_check_says_who_holds_what(command: Command, pasted: Path) -> None:
    """And where it would fit."""
    answer = command("check", "--nvidia-smi", pasted, *SERVES)
    assert answer.code == 1
    words = " ".join(answer.out.split())
    assert "GPU 0: 58.7 of 79.1 GiB are held: 58.6 by python3 (4711)" in words
    assert "it would fit on cards that nobody uses; use CUDA_VISIBLE_DEVICES=1" in words


@pytest.mark.parametrize("words", [SERVES, TRAINS])
def test_this_machines_free_memory_decides(
    command: Command, machine: None, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The first card, that of the process's variable, or that of the command's own."""
    assert command("check", *words).code == 1
    assert command("check", "env", "CUDA_VISIBLE_DEVICES=1", *words).code == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert command("check", *words).code == 0
    assert command("check", "env", "CUDA_VISIBLE_DEVICES=0", *words).code == 1


def test_a_card_that_is_named_is_not_this_machines(command: Command, machine: None) -> None:
    """What is held here says nothing of it."""
    answer = command("check", "--gpu", "h100-80gb-sxm", *SERVES)
    assert answer.code == 0
    assert "held" not in answer.out


def test_the_least_free_of_those_used_counts(command: Command, pasted: Path) -> None:
    """Two cards have what the fuller one has free; as data with the processes."""
    words = ("--nvidia-smi", pasted, "--format", "json", *SERVES, "--tensor-parallel-size", "2")
    answer = json.loads(command("check", *words).out)
    assert answer["verdict"] == "does_not_fit"
    assert [one["index"] for one in answer["cards"]] == ["0", "1"]
    assert answer["cards"][0]["processes"] == [
        {"pid": "4711", "name": "python3", "bytes": 60000 * 2**20}
    ]
    assert answer["result"]["held_bytes"] == 60100 * 2**20


@pytest.mark.parametrize(
    "words",
    [
        ("quick", "qwen2.5-1.5b"),
        ("calculate", "--preset", "qwen2.5-1.5b"),
        ("infer", "Qwen/Qwen3-8B"),
        ("plan", "qwen2.5-1.5b", "--gpus", "1", "--top", "1"),
    ],
)
def test_every_door_takes_the_file(command: Command, pasted: Path, words: tuple[str, ...]) -> None:
    """The card is that of the file, and what is held of it."""
    answer = json.loads(command(*words, "--nvidia-smi", pasted, "--format", "json").out)
    hardware = str(answer)
    assert "'used_memory_bytes': 63019417600" in hardware
    assert "h100-80gb-sxm" in hardware


DOORS = [
    ("quick", "qwen2.5-0.5b", "--qlora"),
    ("infer", "Qwen/Qwen3-8B"),
    ("plan", "qwen2.5-0.5b", "--gpus", "1", "--top", "1"),
]


@pytest.mark.parametrize("words", DOORS)
def test_every_door_says_who_holds_what(
    command: Command, pasted: Path, words: tuple[str, ...]
) -> None:
    """Below the answer; beside data on standard error."""
    said = "GPU 0: 58.7 of 79.1 GiB are held: 58.6 by python3 (4711)"
    answer = command(*words, "--nvidia-smi", pasted)
    assert said in " ".join(answer.out.split())
    answer = command(*words, "--nvidia-smi", pasted, "--format", "json")
    assert said in answer.err
    json.loads(answer.out)


@pytest.mark.parametrize("words", [("check", *SERVES), DOORS[0]])
def test_another_card_than_that_of_the_table_is_said(
    command: Command, pasted: Path, words: tuple[str, ...]
) -> None:
    """Where --gpu names one; not where its name means the same card."""
    verb, *rest = words
    own = (verb, "--nvidia-smi", pasted, "--gpu")
    said = "nvidia-smi shows NVIDIA H100 80GB HBM3, and the estimate is for a100-80gb"
    assert said in " ".join(command(*own, "a100-80gb", *rest).out.split())
    assert "nvidia-smi shows" not in command(*own, "h100", *rest).out


def test_free_memory_is_said_with_the_total(command: Command, pasted: Path) -> None:
    """Where others hold some of it."""
    answer = command("quick", "qwen2.5-0.5b", "--qlora", "--nvidia-smi", pasted)
    assert "of 20.4 GiB free of 79.1 per GPU" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere.txt", "no such file"), ("here", "lists no card")]
)
def test_what_cannot_be_read_is_a_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    """Exit code 2."""
    monkeypatch.setattr(this_machine, "QUERY", ("no-such-program",))
    for verb in (("check", "--nvidia-smi", name, *SERVES), ("infer", "gpt2", "--nvidia-smi", name)):
        answer = command(*verb)
        assert answer.code == 2
        assert said in answer.err


@pytest.mark.parametrize(
    ("release", "shares", "code"),
    [("0.10.2", (0.5, 0.45), 0), ("0.10.2", (0.45, 0.9), 1), ("0.8.5", (0.45, 0.9), 0)],
)
def test_a_share_is_of_the_card_or_of_what_it_has_at_its_release(
    command: Command, tmp_path: Path, release: str, shares: tuple[float, float], code: int
) -> None:
    """vLLM's share counted other processes until 0.9.0; since 0.9.1 as much must be free."""
    path = tmp_path / "two.sh"
    serve = "vllm serve Qwen/Qwen3-4B --max-model-len 8192 --gpu-memory-utilization"
    path.write_text(f"{serve} {shares[0]} &\n{serve} {shares[1]} --port 8001 &\nwait\n")
    answer = command("check", "--gpu", "h100-80gb-sxm", "--at", f"vllm={release}", path)
    assert answer.code == code, answer.out


def test_two_runs_share_the_memory_of_their_node(command: Command, tmp_path: Path) -> None:
    """Each has enough alone."""
    path = tmp_path / "job.sh"
    run = (
        "CUDA_VISIBLE_DEVICES=%s accelerate launch --num_processes 1 --use_deepspeed --zero_stage 2"
        " --offload_optimizer_device cpu sft.py --model_name_or_path Qwen/Qwen2.5-3B &\n"
    )
    path.write_text(f"#SBATCH --nodes=1 --gres=gpu:2 --mem=%sG\n{run % 0}{run % 1}wait\n")
    text = path.read_text()
    codes = []
    for size in (90, 256):
        path.write_text(text % size)
        answer = command("check", "--gpu", "h100-80gb-sxm", path)
        codes.append(answer.code)
        if size == 90:
            assert "host RAM:" in answer.out
    assert codes == [1, 0]


def test_cards_of_two_kinds_are_named(command: Command, tmp_path: Path) -> None:
    """Each counts as the smallest; what would not start so is open where layers are divided."""
    path = tmp_path / "smi.csv"
    cards = (("0, GPU-a, NVIDIA RTX A6000", 49140), ("1, GPU-b, NVIDIA GeForce RTX 3090", 24576))
    rows = [f"{name}, {size} MiB, 500 MiB, 4 MiB, {size - 504} MiB" for name, size in cards]
    path.write_text("\n".join([HEAD, *rows]))
    llama = ("llama-server", "-m", "Llama-3.3-70B-Instruct-Q4_K_M.gguf", "-ngl", "99", "-c")
    for words, code in (
        ((*SERVES, "--tensor-parallel-size", "2"), 0),
        ((*llama, "8192"), 0),  # both are used, though nobody names a number
        ((*llama, "65536"), 3),
    ):
        answer = command("check", "--nvidia-smi", path, *words)
        said = " ".join(answer.out.split())
        assert answer.code == code, said
        assert "the 2 cards are of 2 kinds (rtx-a6000, rtx-3090); each is counted as the" in said
        assert "on 2 × NVIDIA GeForce RTX 3090" in said
    refused = command("infer", "qwen2.5-7b", "--gpus", "2", "--nvidia-smi", path)
    assert refused.code == 2
    assert "name the one to count with --gpu" in refused.err
    assert command("infer", "qwen2.5-7b", "--gpu", "3090", "--nvidia-smi", path).code == 0


def test_a_total_is_more_than_the_card_has_or_more_than_is_free(
    command: Command, pasted: Path
) -> None:
    """The card has 79 GiB, and 20 of them are free."""
    shared = command("check", "--nvidia-smi", pasted, *SERVES)
    assert "more than is free" in shared.out
    small = command("check", "--gpu", "rtx-3060", *SERVES)
    assert "more than is free" not in small.out
