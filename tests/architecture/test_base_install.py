"""The base install stays light: estimates ask for nothing that it does not have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpu_mem_calculator.serving import server_names

BLOCKED = (
    "import sys\nfor name in ('numpy', 'torch', 'transformers'):\n    sys.modules[name] = None\n"
)
RUN = "from gpu_mem_calculator.cli.main import main\nraise SystemExit(main(sys.argv[1:]))\n"
COMMANDS = [
    ["quick", "7", "--gpus", "8", "--engine", "deepspeed"],
    *(["infer", "llama3.2-1b", "--engine", name, "--gpu", "h200"] for name in server_names()),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[3])
def test_a_command_runs_without_what_only_developers_have(words: list[str]) -> None:
    """numpy, torch and transformers are not asked for."""
    command = [sys.executable, "-c", BLOCKED + RUN, *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
