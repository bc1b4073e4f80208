"""Runs of train.py on the CPU: small, in as many processes as a test asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import GPTLITE

SIZES = ("--n_layer", "2", "--n_embd", "32", "--n_head", "2", "--block_size", "32")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
Start = Callable[..., "Ran"]
Train = Callable[..., "Ran"]


@dataclass
class Ran:
    """What came of a run."""

    codes: list[int]
    text: str  # rank 0's
    report: dict[str, Any]


@pytest.fixture(scope="session")
def forker() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything and forks runs."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "forked.py")],
        cwd=GPTLITE,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        process.wait(20)


@pytest.fixture(scope="session")
def start(forker: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Run train.py with arguments: `start(*arguments, ranks=2)`."""

    def run(*arguments: str, ranks: int = 2, report: str | Path = "report.json") -> Ran:
        folder = tmp_path_factory.mktemp("train")
        report = folder / report
        job = {
            "ranks": ranks,
            "out": str(folder / "out"),
            "arguments": [*arguments, "--report", str(report)],
        }
        assert forker.stdin
        assert forker.stdout
        forker.stdin.write(json.dumps(job) + "\n")
        forker.stdin.flush()
        codes = json.loads(forker.stdout.readline())
        text = (folder / "out.0").read_text(encoding="utf-8")
        found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        return Ran(codes, text, found)

    return run


@pytest.fixture(scope="session")
def train(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train something small: `train(name of a config or its data, *arguments, ranks=2)`."""
    text = tmp_path_factory.mktemp("text") / "text.txt"
    whole = (GPTLITE / "text" / "shakespeare.txt").read_text(encoding="utf-8")
    text.write_text(whole[:20_000], encoding="utf-8")

    def run(config: str | dict[str, Any], *arguments: str, ranks: int = 2) -> Ran:
        path = GPTLITE / "configs" / f"{config}.json"
        if isinstance(config, dict):
            path = tmp_path_factory.mktemp("config") / "ds_config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
        given = ("--deepspeed_config", str(path), "--text", str(text))
        return start(*given, *SIZES, *arguments, ranks=ranks)

    return run


def shipped(name: str) -> dict[str, Any]:
    """A configuration of the example, as data that a test may change."""
    found: dict[str, Any] = json.loads((GPTLITE / "configs" / f"{name}.json").read_text("utf-8"))
    return found
