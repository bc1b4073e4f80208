"""`gpu-mem-calc diagnose`: files or standard input, with the run beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main

OOM = """Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/transformers/loss/loss_utils.py", line 100, in loss
    logits = logits.float()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity
of 23.57 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB
memory in use. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 0.90 GiB is reserved
by PyTorch but unallocated.
"""
RUN = {
    "model": {"name": "qwen2.5-1.5b"},
    "training": {"batch_size": 4, "seq_len": 1024},
    "hardware": {"gpu": "4090"},
}


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A file with what torch prints."""
    file = tmp_path / "oom.txt"
    file.write_text(OOM)
    return str(file)


def test_a_file_with_its_run(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys of the contract, and remedies that were estimated."""
    run = tmp_path / "run.json"
    run.write_text(json.dumps(RUN))
    assert main(["diagnose", log, "--config", str(run), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= {"read", "run", "cause", "others", "evidence", "remedies", "summary"}
    assert found["cause"]["certainty"] == "certain"
    assert found["cause"]["formula"] == "4 × 1,024 tokens × 151,936 logits × 4 bytes"
    assert found["read"][0]["figures"]["free_bytes"] == 2**30
    assert found["remedies"][0]["fits"] is True


def test_a_command_behind_two_dashes_is_the_run(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its words are none of diagnose."""
    command = "trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name x --max_length 1024"
    words = [*command.split(), "--per_device_train_batch_size", "4"]
    assert main(["diagnose", log, "--gpu", "4090", "--", *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("certain: the logits of the whole vocabulary did not fit")
    assert "part by part" in out


def test_a_text_that_says_nothing_cannot_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And bytes that are no text are no fault."""
    file = tmp_path / "noise"
    file.write_bytes(bytes(range(256)) * 10)
    assert main(["diagnose", str(file)]) == 3
    assert "cannot tell why it died" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-file"], "no such file"),
        (["{log}", "--config", "{log}", "--", "trl", "sft"], "give one of them"),
    ],
)
def test_bad_input_is_one_sentence(
    log: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2."""
    assert main(["diagnose", *(word.format(log=log) for word in words)]) == 2
    assert says in capsys.readouterr().err


def test_the_options_of_a_command_stay_as_they_are(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own spellings of options are not put into the user's command."""
    command = ["vllm", "serve", "Qwen/Qwen2.5-7B", "--tensor-parallel-size", "2"]
    assert main(["diagnose", log, "--", *command]) == 0
    assert "is not an option" not in capsys.readouterr().err


def test_no_share_is_offered_that_cannot_hold_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where others hold nearly all of the card."""
    file = tmp_path / "start.txt"
    file.write_text(
        "ValueError: Free memory on device (0.49/79.32 GiB) on startup is less than desired GPU"
        " memory utilization (0.6, 47.59 GiB). Decrease GPU memory utilization or reduce GPU"
        " memory used by other processes."
    )
    assert main(["diagnose", str(file)]) == 0
    out = capsys.readouterr().out
    assert "nvidia-smi" in out
    assert "utilization 0.0" not in out


def test_a_command_that_cannot_be_read_is_no_reason_to_say_nothing(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is answered, and what was not read is said."""
    served = ("vllm", "serve", "Qwen/Qwen2.5-7B", "--no-such-option")
    assert main(["diagnose", log, "--", *served]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "2.32 GiB was asked for" in words
    assert "the command was not read, and the answer is by the text alone" in words
