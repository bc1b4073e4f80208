"""A whole command in one quoted word is read as a line of a script."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.tools.conversion.source import read_source
from gpu_mem_calculator.tools.reading.named_files import NamedFiles

LINE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"


@pytest.mark.parametrize("line", [LINE, f"{LINE} | tee log.txt", f"cd x && {LINE} > log 2>&1 &"])
def test_a_command_in_quotes_is_the_command(line: str) -> None:
    """With what the shell does behind it."""
    [quoted] = read_source([line], NamedFiles(None))
    [plain] = read_source(LINE.split(), NamedFiles(None))
    assert quoted.run == plain.run
