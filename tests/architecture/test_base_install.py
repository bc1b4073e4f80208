"""The base install stays light: estimates ask for nothing that it does not have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpu_mem_calculator.serving import server_names

ABSENT = (
    "fastapi",
    "numpy",
    "obstore",
    "prometheus_client",
    "ray",
    "torch",
    "transformers",
    "uvicorn",
)
BLOCKED = f"import sys\nsys.modules |= dict.fromkeys({ABSENT})\n"
RUN = "from gpu_mem_calculator.cli.main import main\nraise SystemExit(main(sys.argv[1:]))\n"
COMMANDS = [
    ["quick", "7", "--gpus", "8", "--engine", "deepspeed"],
    *(["infer", "llama3.2-1b", "--engine", name, "--gpu", "h200"] for name in server_names()),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[3])
def test_a_command_runs_without_what_only_developers_have(words: list[str]) -> None:
    """numpy, torch, transformers and the web's packages are not asked for."""
    found = _run(words)
    assert found.returncode == 0, found.stderr


def test_the_page_says_what_it_needs() -> None:
    """One sentence with the line to type."""
    found = _run(["serve"])
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "pip install 'gpu-mem-calculator[web]'" in found.stderr


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + RUN, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
