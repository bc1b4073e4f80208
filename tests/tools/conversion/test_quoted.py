"""A whole command in one quoted word is read as a line of a script."""

from __future__ import annotations

import pytest

from tests.tools.reading_of import readings_of

LINE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"


@pytest.mark.parametrize("line", [LINE, f"{LINE} | tee log.txt", f"cd x && {LINE} > log 2>&1 &"])
def test_a_command_in_quotes_is_the_command(line: str) -> None:
    """With what the shell does behind it."""
    [quoted] = readings_of([line])
    [plain] = readings_of(LINE.split())
    assert quoted.run == plain.run
