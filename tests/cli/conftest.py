"""Run the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu_mem_calculator.cli.main import main


class Answer(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


Command = Callable[..., Answer]


def above_the_last(text: str) -> list[str]:
    """The lines above the last one, which is made to be pasted and is not folded."""
    return text.splitlines()[:-1]


def rows(text: str, columns: int = 80) -> int:
    """The rows of a terminal that a text takes."""
    return sum(max(1, -(-len(line) // columns)) for line in text.splitlines())


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `gpu-mem-calc` with some words."""

    def run(*words: str) -> Answer:
        code = main([str(word) for word in words])
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def configs() -> Path:
    """The run files that come with the project."""
    return Path(__file__).parents[2] / "configs"
