"""A text without a command: a log is diagnosed, a command checked, a name estimated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOG = (
    "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a"
    " total capacity of 79.15 GiB of which 1.00 GiB is free.\n"
)
COMMAND = "vllm serve Qwen/Qwen3-0.6B --max-model-len 4096\n"
TEXTS = [
    (LOG, "possible: the card was full"),
    ("The evaluation OOMs, its eval batch size is 8.\n", "likely: it died in the"),
    ("# else it OOMs\n" + COMMAND, "cannot tell"),
    (COMMAND, "cannot tell"),
    (COMMAND + "trl sft --model_name_or_path gpt2 --dataset_name a\n", "cannot tell: vllm serve"),
    ('{"model": {"name": "gpt2"}}', "fits"),
]


def _answer(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_mem_calculator", *words]
    given = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    return subprocess.run(command, capture_output=True, text=True, check=False, **given)


@pytest.mark.parametrize(("text", "begins"), [*TEXTS, ("gpt2\n", "fits")])
def test_a_text_on_standard_input_is_recognised(text: str, begins: str) -> None:
    """Without a word, and as `-`."""
    found = _answer(text=text)
    assert found.stdout.startswith(begins), found.stderr
    assert _answer("-", text=text).stdout == found.stdout


@pytest.mark.parametrize(("text", "begins"), TEXTS)
def test_a_file_is_recognised(text: str, begins: str, tmp_path: Path) -> None:
    """By what is in it."""
    path = tmp_path / "pasted.txt"
    path.write_text(text)
    found = _answer(str(path))
    assert found.stdout.startswith(begins), found.stderr


def test_without_a_text_the_help_is_printed() -> None:
    """And nothing is waited for."""
    assert _answer().stdout.startswith("usage:")


def test_a_text_of_no_kind_is_refused() -> None:
    """With one sentence."""
    found = _answer(text="hello world\n")
    assert (found.returncode, found.stderr.count("\n")) == (3, 1)
    assert "starts no tool" in found.stderr
