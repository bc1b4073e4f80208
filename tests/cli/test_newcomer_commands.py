"""Commands of newcomers get an answer: the number that cannot be told may only shrink."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from .conftest import Command
from .newcomer_commands import COMMANDS

FILES = Path(__file__).with_name("newcomer")
CANNOT_TELL = 7  # of them: one in six
REFUSED = 1  # `--limit-mm-per-prompt image=4` of vLLM 0.8
KNOWN_CODES = (0, 1, 2, 3)


def _code(command: Command, line: str) -> int:
    """The exit code; where it cannot be told, that something without a bound that is small enough
    decides is checked.
    """
    words = shlex.split(line)
    check = ["--check"] if words[0] != "check" else []
    answer = command(words[0], *check, "--format", "json", *words[1:])
    if answer.code == 3:
        data = json.loads(answer.out)
        if "problems" in data:  # read, and not modelled: the sentences say what
            return answer.code
        results = [one.get("result") for one in data.get("answers", [])] or [data.get("result")]
        result = next((one for one in results if one and one["verdict"] == "cannot_tell"), data)
        room = result["headroom_bytes"]
        key = "adds_bytes" if room >= 0 else "saves_bytes"
        sizes = [one[key] for one in result["limits"]]
        assert None in sizes or sum(sizes) > abs(room) - 1, line
    return answer.code


def test_at_most_one_in_six_cannot_be_told(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each names its card; none is a fault of ours."""
    for file in FILES.iterdir():
        shutil.copy(file, tmp_path / file.name.removesuffix(".txt"))
    monkeypatch.chdir(tmp_path)
    codes = {line: _code(command, line) for line in COMMANDS}
    assert set(codes.values()) <= set(KNOWN_CODES), codes
    open_ones = [line for line, code in codes.items() if code == 3]
    assert len(open_ones) <= CANNOT_TELL, open_ones
    assert len(COMMANDS) >= 6 * CANNOT_TELL
    refused = [line for line, code in codes.items() if code == 2]
    assert len(refused) <= REFUSED, refused
