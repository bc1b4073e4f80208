"""Documents are tested: what they show is what the program does now."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.cli.main import main
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def script(name: str) -> dict[str, Any]:
    """The functions of a script in docs/."""
    return runpy.run_path(str(ROOT / "docs" / f"{name}.py"), run_name=name)


def test_the_key_reference_is_up_to_date() -> None:
    """`python docs/reference.py` would change nothing."""
    assert script("reference")["page"]() == (ROOT / "docs" / "run-file.md").read_text("utf-8")


def test_every_example_run_file_is_on_the_page() -> None:
    """Each file of `configs/`, shown or linked."""
    reference = script("reference")
    files = {path.stem for path in (ROOT / "configs").glob("*.json")}
    assert reference["EXAMPLES"].keys() | reference["OTHERS"].keys() == files


# those in blocks, and those of the table "I want to": without what has to be filled in or installed
COMMANDS = [
    *re.findall(r"^\$ (gpu-mem-calc .*)$", README, re.MULTILINE),
    *re.findall(r"`(gpu-mem-calc (?!serve|mcp|trace|measure|.*[A-Z]{4}).*?)`", README),
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_runs(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """Every command works as printed, from the root of the repository."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    words = [str(tmp_path / w) if w == "report.html" else w for w in words]
    assert main(words) in (0, 1)
    said = capsys.readouterr().err
    assert said == (f"wrote {tmp_path / 'report.html'}\n" if "report.html" in line else "")


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python sample prints a number and a verdict."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert re.search(r"[\d,]+ bytes at .*, fits: (True|False)", capsys.readouterr().out)


def test_documents_name_files_that_exist() -> None:
    """Paths in the documents lead somewhere."""
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        text = document.read_text("utf-8")
        for path in re.findall(
            r"`((?:docs|tests|src|engines|memory|families|catalog)/[\w./]+)`", text
        ):
            inside = ROOT / "src" / "gpu_mem_calculator" / path
            assert (ROOT / path).exists() or inside.exists(), (document.name, path)
        for link in re.findall(r"\]\(([\w./-]+)\)", text):
            assert (document.parent / Path(link)).exists(), (document.name, link)


def test_log_of_a_measurement_is_current() -> None:
    """`python docs/measured_log.py` would change nothing."""
    made = script("measured_log")
    text = made["PAGE"].read_text("utf-8")
    assert "the run took" in text
    assert made["page"](text) == text
