"""Cards of a file of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.own_cards import VARIABLE, OwnCardsError, own_cards

WHOLE = """[[gpu]]
name = "my-card"
memory_gb = 30

[[gpu]]
name = "rtx-4090"
memory_gb = 48
memory_bytes = 50_000_000_000
tflops = { bf16 = 165.2 }
bandwidth_gb_per_s = 1008
"""


def test_own_cards_come_first(tmp_path: Path) -> None:
    """A new card is found in any spelling, and one of a known name is taken instead of it."""
    file = tmp_path / "my.toml"
    file.write_text(WHOLE, encoding="utf-8")
    code = (
        "from gpu_mem_calculator.runfile.resolve.hardware import find_hardware as find;"
        "from gpu_mem_calculator.runfile.config import GPUConfig as G;"
        "print(find(G(gpu='My Card'), None).card_bytes, find(G(gpu='rtx-4090'), None).card_bytes)"
    )
    words = [sys.executable, "-c", code]
    environment = {**os.environ, VARIABLE: str(file)}
    made = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["30000000000", "50000000000"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[[gpu]]\nname = 'x'\n", "row 1: memory_gb is missing; add it"),
        ("[[gpu]]\nname = 'x'\nmemory_gb = '24'\n", "memory_gb='24' must be a number"),
        ("[[gpu]]\nname = 'x'\nmemory_gb = 24\nvram = 1\n", "vram is not a key of a card"),
        ("[[gpu]]\nname = 'x'\nmemory_gb = 24\nvendor = 'me'\n", "must be one of nvidia"),
        ("name = 'x'\n", "has no [[gpu]] rows; each needs a name and memory_gb"),
        ("[[gpu]\n", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, part: str
) -> None:
    """It names the file and the row."""
    file = tmp_path / "my.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(OwnCardsError) as caught:
        own_cards()
    assert part in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has the path."""
    monkeypatch.setenv(VARIABLE, "nowhere.toml")
    with pytest.raises(OwnCardsError, match=r"nowhere.toml: no such file"):
        own_cards()
