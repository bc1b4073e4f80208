"""The short answer shows whole items: assumptions, notes, remedies and their costs."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Command, rows

RUNS = [
    ["quick", "llama3.1-8b", "--gpu", "4090"],
    ["quick", "0.2"],
    ["quick", "70b", "--gpus", "16", "--engine", "fsdp", "--gpu", "h100"],
    ["quick", "gpt2", "--lora", "16"],
    ["quick", "llama3.2-1b", "--gpus", "4", "--engine", "megatron_lm"],
    ["quick", "llama3.2-1b", "--gpus", "8", "--engine", "zero3", "--gpu", "t4"],
]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_items_are_whole(command: Command, words: list[str]) -> None:
    """Of assumptions and notes those that fit and the number of the others; --long has all."""
    short, long = (command(*words, *more).out for more in ([], ["--long"]))
    assert rows(short) <= 24
    said = re.search(r"^(?:note|assumed): (.*(?:\n {6,}.*)*)", short, re.MULTILINE)
    assert said is not None
    items = " ".join(said[1].split()).split("; ")
    more = re.fullmatch(r"and ([0-9]+) more \(--long\)", items[-1])
    whole = " ".join(long.split())
    assert items[0] == "see --long" or all(one in whole for one in items[: -1 if more else None])
    assert "…" not in said[1]
    assert not [one for one in short.splitlines() if one.startswith("fits with") and "…" in one]
