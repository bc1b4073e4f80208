"""`measure` where there is no GPU, and sizes as they are typed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.values import memory_range, memory_size
from gpu_mem_calculator.lab.measure import card

from .conftest import Command
from .test_measure import GIB


def test_without_a_gpu_there_is_one_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No torch, or no card: exit code 2 and what to do."""
    monkeypatch.setattr(card, "find_spec", lambda name: None)
    answer = command("measure", "--preset", "gpt2")
    assert (answer.code, answer.out) == (2, "")
    assert 'pip install -e ".[measure]"' in answer.err


def test_without_a_gpu_no_file_is_left(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--append makes its file with the first row."""
    monkeypatch.setattr(card, "find_spec", lambda name: None)
    assert command("measure", "--preset", "gpt2", "--append", tmp_path / "runs.jsonl").code == 2
    assert not list(tmp_path.iterdir())


def test_sizes_are_binary() -> None:
    """A card sold as 24 GB has 24 GiB."""
    sizes = [memory_size(text) for text in ("24GiB", "24GB", "24", "0.5g", "500MiB", "9B")]
    assert sizes == [24 * GIB, 24 * GIB, 24 * GIB, GIB // 2, 500 * 2**20, 9]


@pytest.mark.parametrize(
    ("text", "sizes"), [("12GiB:16GiB", (12, 16)), ("12:12", None), ("16:12", None)]
)
def test_a_range_has_its_lower_size_first(text: str, sizes: tuple[int, int] | None) -> None:
    """Equal sizes are no range."""
    if sizes is None:
        with pytest.raises(argparse.ArgumentTypeError, match="the lower one first"):
            memory_range(text)
    else:
        assert memory_range(text) == (sizes[0] * GIB, sizes[1] * GIB)
