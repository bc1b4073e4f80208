"""`explain`: every entry with its formula, numbers, time and source."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Command

CONFIGS = ["llama2_7b_deepspeed", "gpt3_175b_megatron", "pytorch_ddp_example"]


@pytest.mark.parametrize("name", CONFIGS)
def test_explanations_are_plain_and_narrow(command: Command, configs: Path, name: str) -> None:
    """No escape codes, no line above 80 columns."""
    answer = command("explain", "--config", configs / f"{name}.json", "--parts")
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_an_entry_is_explained_in_full(command: Command) -> None:
    """Name, formula, numbers put in, bytes, when and source stand together."""
    out = command("explain", "--preset", "gpt2", "--set", "training.batch_size=3").out
    block = out.partition("\ntoken ids and labels")[2].partition("\n\n")[0]
    for text in ("24 × b × s", "= 24 × 3 × 1,024", "= 73,728", "alive", "source code: "):
        assert text in block


def test_entries_at_the_peak_come_first(command: Command) -> None:
    """AdamW's states are alive at the peak of a large batch, its step's temporaries are not."""
    out = command("explain", "--preset", "gpt2", "--set", "training.batch_size=64").out
    first, _, others = out.partition("at other instants, or elsewhere")
    assert "adamw states" in first
    assert "adamw foreach temporaries" in others


def test_json_has_every_entry(command: Command) -> None:
    """--format json holds the entries with exact bytes, and the letters."""
    data = command("explain", "--preset", "gpt2", "--format", "json").data
    assert data["letters"]["h"] == 768
    names = {entry["name"] for entry in data["entries"]}
    assert {"parameters", "adamw states", "CUDA context"} <= names


def test_quick_explains_itself(command: Command) -> None:
    """`quick --explain` explains the run that quick would report."""
    out = command("quick", "gpt2", "--explain").out
    assert "alive at the peak" in out
