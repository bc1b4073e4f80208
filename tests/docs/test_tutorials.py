"""Tutorials are tested: their commands run, their Python does, and each is listed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main
from tests.conftest import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = sorted(path for path in TUTORIALS.glob("*.md") if path.stem != "index")
COMMAND = re.compile(r"^\$ (gpu-mem-calc .*)$", re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_a_tutorial_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each answers, from the root of the repository."""
    monkeypatch.chdir(ROOT)
    text = path.read_text("utf-8")
    samples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    commands = COMMAND.findall(text)
    assert samples or commands
    for line in commands:
        assert main(shlex.split(line)[1:]) in (0, 1), line
        said = capsys.readouterr()
        assert said.out.strip(), line
        assert not said.err, line
    for sample in samples:
        exec(compile(sample, str(path), "exec"), {})
        assert capsys.readouterr().out


def test_every_tutorial_is_listed() -> None:
    """The list links each."""
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (TUTORIALS / "index.md").read_text("utf-8"))
    assert sorted(listed) == [path.stem for path in PAGES]
