"""Measured runs against what documents say of them: each file and group has some here, and
`make proof` scores them all.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator import __version__
from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import backtest
from tests.conftest import ROOT

from .test_documents import README, script

# start-up logs of servers, scored in tests/ground_truth/test_serving_logs.py, and other tables
LOGS = {
    "layers",
    "layers_2",
    "llamacpp_buffers",
    "serving",
    "serving_llamacpp",
    "serving_releases",
    "serving_releases_last",
    "serving_sglang",
    "serving_tensorrt_llm",
    "serving_tgi",
    "serving_unseen",
    "serving_vllm",
    "speeds",
    "vllm_pages",
    "vllm_weights",
}
EVERY = 9  # one of every nine runs of a file and group is scored


@cache
def evidence() -> dict[str, Any]:
    """docs/evidence.py, which scores every measured run once."""
    return script("evidence")


def told() -> dict[str, list[list[Any]]]:
    """The runs of the page /accuracy: file and group, then runs in the order of its columns."""
    page = ROOT / "src" / "gpu_mem_calculator" / "web" / "static" / "accuracy.json"
    found: dict[str, list[list[Any]]] = json.loads(page.read_text("utf-8"))["runs"]
    return {place: runs for place, runs in found.items() if place.split("/")[0] not in LOGS}


@pytest.mark.parametrize("place", told())
def test_runs_are_scored_as_documents_say(place: str) -> None:
    """Every figure of every ninth run of a file and group is the one of the page /accuracy."""
    scores, page = evidence()["scores"], evidence()["accuracy_page"]
    figures = {row[0]: row[3] for row in told()[place][::EVERY]}
    rows = read_rows(scores.RUNS / f"{place.split('/')[0]}.jsonl")
    found = backtest([row for row in rows if row.id in figures])
    assert found.refused == ()
    assert {
        row.id: [page.figure(metric, row.metrics.get(metric)) for metric in scores.METRICS]
        for row in found.rows
    } == figures


@pytest.mark.proof
def test_no_group_of_measured_runs_got_worse() -> None:
    """No figure is further off, in the mean or at worst, than documents say."""
    assert evidence()["scores"].worse() == []


@pytest.mark.proof
def test_no_measured_run_is_refused() -> None:
    """The estimate has a figure for each of them."""
    scores = evidence()["scores"]
    assert [one.id for name in scores.FILES for one in scores.report(name).refused] == []


def test_every_file_of_measured_runs_is_scored() -> None:
    """None lies there that nothing reads."""
    scores = evidence()["scores"]
    runs = {path.stem for path in scores.RUNS.glob("*.jsonl")}
    assert runs - set(scores.FILES) == LOGS


@pytest.mark.proof
def test_documents_say_what_the_program_says_now() -> None:
    """`python docs/evidence.py` would change nothing: figures, pictures and sample."""
    stale = [
        path.name
        for path, text in evidence()["documents"]().items()
        if path.read_text("utf-8") != text
    ]
    assert stale == []


def test_documents_show_what_commands_print() -> None:
    """README, serving.md and faq.md, and all of each answer."""
    for path, bodies in evidence()["sampled"]().items():
        text = path.read_text("utf-8")
        for mark, body in bodies.items():
            assert f"<!-- {mark} -->\n{body}\n<!-- end -->" in text, (path.name, mark)


def test_a_first_score_never_changes() -> None:
    """Once its runs have been looked at, a better figure is hindsight."""
    found = {(one.file, one.metric): one.shown for one in evidence()["first_scores"].FIRST}
    assert found[("unseen", "allocated")] == "0.12 %, -0.90 %"
    assert found[("kept", "allocated")] == "0.51 %, -5.37 %"
    assert found[("kept", "needs")] == "1.87 %"


def test_the_readme_leads_with_runs_that_nobody_had_looked_at() -> None:
    """Rows of runs that were used in development come last."""
    table = README.partition("<!-- accuracy -->")[2].partition("<!-- end -->")[0]
    seen = [line.split("|")[2].strip() for line in table.splitlines() if line.startswith("| ")][2:]
    assert seen[0] == "no"
    assert seen == sorted(seen, key=lambda cell: cell != "no")


@pytest.mark.proof
def test_the_readme_says_what_needs_is_on_runs_that_were_kept_aside() -> None:
    """In the rows of runs that nobody had looked at."""
    errors = [abs(error) for error in evidence()["scores"].errors("needs", files=("kept",))]
    said = f"| needs | 1.87 % | {sum(errors) / len(errors):.2f} %, +{max(errors):.2f} % |"
    assert said in README


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


@pytest.mark.proof
def test_every_phase_that_is_off_is_on_its_page() -> None:
    """Each with a reason, or with the words that there is none."""
    pages = evidence()["group_pages"]
    for group in evidence()["GROUPS"]:
        text = (ROOT / "docs" / "accuracy" / f"{group}.md").read_text("utf-8")
        for one in pages.off(group):
            assert f"| {one.run} | {one.what} |" in text
            assert one.why in text
