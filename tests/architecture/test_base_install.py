"""The base install stays light: estimates ask for nothing that it does not have."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpu_mem_calculator.serving import server_names

ROOT = Path(__file__).parents[2]
ABSENT = (
    "numpy",
    "obstore",
    "prometheus_client",
    "ray",
    "rich",
    "starlette",
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


def test_the_base_install_needs_two_packages() -> None:
    """msgspec and PyYAML, which need nothing themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == {"msgspec", "pyyaml"}
    for name in ("msgspec", "pyyaml"):
        needs = map(Requirement, importlib.metadata.requires(name) or ())
        assert not [one for one in needs if one.marker is None or one.marker.evaluate()]


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
    assert 'pip install -e ".[web]" in the clone' in found.stderr


def test_the_planner_says_what_it_needs() -> None:
    """One sentence with the line to type; its help needs nothing."""
    found = _run(["plan", "gpt2", "--gpus", "8", "--gpu", "h100"])
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert 'pip install -e ".[plan]" in the clone' in found.stderr
    assert _run(["plan", "--help"]).returncode == 0


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + RUN, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
