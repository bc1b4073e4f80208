"""Documents are tested: what they show is what the program does now."""

from __future__ import annotations

import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator import __version__
from gpu_mem_calculator.cli.main import main
from tests.conftest import ROOT

# start-up logs of servers, scored in tests/ground_truth/test_serving_logs.py, and other tables
LOGS = {
    "llamacpp_buffers",
    "serving",
    "serving_llamacpp",
    "serving_sglang",
    "serving_tensorrt_llm",
    "serving_tgi",
    "serving_unseen",
    "serving_vllm",
    "speeds",
    "vllm_pages",
    "vllm_weights",
}
README = (ROOT / "README.md").read_text(encoding="utf-8")


def script(name: str) -> dict[str, Any]:
    """The functions of a script in docs/."""
    return runpy.run_path(str(ROOT / "docs" / f"{name}.py"), run_name=name)


def test_the_key_reference_is_up_to_date() -> None:
    """`python docs/reference.py` would change nothing."""
    assert script("reference")["page"]() == (ROOT / "docs" / "run-file.md").read_text("utf-8")


@cache
def evidence() -> dict[str, Any]:
    """docs/evidence.py, which scores every measured run once."""
    return script("evidence")


def test_no_group_of_measured_runs_got_worse() -> None:
    """No figure is further off, in the mean or at worst, than documents say."""
    assert evidence()["scores"].worse() == []


def test_every_measured_run_is_scored() -> None:
    """No run is refused, and every file of measured runs is among those that are scored."""
    scores = evidence()["scores"]
    assert [one.id for name in scores.FILES for one in scores.report(name).refused] == []
    runs = {path.stem for path in scores.RUNS.glob("*.jsonl")}
    assert runs - set(scores.FILES) == LOGS


def test_documents_say_what_the_program_says_now() -> None:
    """`python docs/evidence.py` would change nothing: figures, pictures and sample."""
    stale = [
        path.name
        for path, text in evidence()["documents"]().items()
        if path.read_text("utf-8") != text
    ]
    assert stale == []


def test_the_readme_says_what_needs_is_on_runs_that_were_kept_aside() -> None:
    """Beside the column of runs that were looked at."""
    rest = README.partition("<!-- accuracy -->")[2]
    errors = [abs(error) for error in evidence()["scores"].errors("needs", files=("kept",))]
    said = f"{sum(errors) / len(errors):.2f} % in the mean and +{max(errors):.1f} % at worst"
    assert said in rest.partition("<!-- end -->")[0]


def test_the_figures_were_written_by_this_version() -> None:
    """A new version scores every run anew; the day is the one of the last change."""
    stored = evidence()["scores"].stored()
    assert stored["version"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", stored["date"])


def test_figures_that_became_worse_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean, a worst error and a number of runs each count."""
    scores = evidence()["scores"]
    now = {"runs/ddp": {"allocated": [2, 0.5, 1.0], "reserved": [2, 0.1, 0.2]}}
    then = {"runs/ddp": {"allocated": [2, 0.4, 1.0], "reserved": [2, 0.1, 0.1], "needs": [1, 0, 0]}}
    monkeypatch.setattr(scores, "figures", lambda: now)
    monkeypatch.setattr(scores, "stored", lambda: {"figures": then})
    assert [line.split(" is ")[0] for line in scores.worse()] == [
        "runs/ddp: allocated",
        "runs/ddp: reserved",
        "runs/ddp: needs",
    ]
    monkeypatch.setattr(scores, "stored", lambda: {"figures": now})
    assert scores.worse() == []


def test_every_phase_that_is_off_is_on_its_page() -> None:
    """Each with a reason, or with the words that there is none."""
    pages = evidence()["group_pages"]
    for group in evidence()["GROUPS"]:
        text = (ROOT / "docs" / "accuracy" / f"{group}.md").read_text("utf-8")
        for one in pages.off(group):
            assert f"| {one.run} | {one.what} |" in text
            assert one.why in text


COMMANDS = [
    line.removeprefix("$ ") for line in re.findall(r"^\$ gpu-mem-calc .*$", README, re.MULTILINE)
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
    assert capsys.readouterr().err == ""


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
