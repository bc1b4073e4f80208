"""The page /accuracy shows what was scored last, and all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from tests.conftest import ROOT

STATIC = ROOT / "src" / "gpu_mem_calculator" / "web" / "static"
DATA, STORED, PEERS = (
    STATIC / "accuracy.json",
    ROOT / "docs" / "scored.json",
    ROOT / "docs" / "peers.json",
)
PAGES = ("accuracy", "docs")
OURS = "this one"


@cache
def data() -> dict[str, Any]:
    """The file that the page asks for."""
    found: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return found


@cache
def stored() -> dict[str, Any]:
    """What docs/evidence.py wrote down last."""
    found: dict[str, Any] = json.loads(STORED.read_text("utf-8"))
    return found


def kind_of(group: str) -> dict[str, Any]:
    """The kind of runs that a group belongs to."""
    found: dict[str, Any] = next(k for k in data()["kinds"].values() if group in k["groups"])
    return found


def runs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(file, group, run) of every run of the page."""
    for place, rows in data()["runs"].items():
        file, group = place.split("/")
        for row in rows:
            yield file, group, dict(zip(data()["columns"], row, strict=False))


def errors(group: str, metric: str, file: str | None = None) -> list[float]:
    """The errors in percent that the page's own rows show."""
    index = list(kind_of(group)["metrics"]).index(metric)
    found = []
    for name, here, run in runs():
        if here == group and file in (None, name) and (figure := run["figures"][index]):
            measured, apart = figure
            if measured or not apart:
                found.append(100 * apart / measured if measured else 0.0)
    return found


def test_the_page_is_of_the_last_score() -> None:
    """Day and version are those of docs/scored.json; `python docs/evidence.py` writes both."""
    assert (data()["date"], data()["version"]) == (stored()["date"], stored()["version"])


def test_its_rows_make_the_figures_that_were_stored() -> None:
    """Number, mean and worst of every metric, file and group."""
    for place, cells in stored()["figures"].items():
        file, group = place.split("/")
        for metric, (number, average, worst) in cells.items():
            found = [abs(error) for error in errors(group, metric, file)]
            assert len(found) == number, (place, metric)
            assert mean(found) == pytest.approx(average, abs=0.002), (place, metric)
            assert max(found) == pytest.approx(worst, abs=0.002), (place, metric)


def test_nothing_is_shown_that_was_not_stored() -> None:
    """Files of runs that were trained or generated with are those of docs/scored.json."""
    training = data()["kinds"]["training"]["groups"]
    assert {p for p in data()["runs"] if p.split("/")[1] in training} == set(stored()["figures"])


def test_summaries_are_those_of_the_rows() -> None:
    """Mean, median and worst by group are what a visitor finds when adding up the rows."""
    for kind in data()["kinds"].values():
        for metric, told in kind["metrics"].items():
            for group, figures in told["groups"].items():
                found = errors(group, metric)
                if metric == "fits":
                    right = sum(error == 0 for error in found)
                    assert (figures["n"], figures["right"]) == (len(found), right)
                    continue
                sizes = [abs(error) for error in found]
                assert figures["n"] == len(sizes)
                assert figures["mean"] == pytest.approx(mean(sizes), abs=0.002)
                assert figures["median"] == pytest.approx(median(sizes), abs=0.002)
                assert abs(figures["worst"]) == pytest.approx(max(sizes), abs=0.002)


def test_every_measured_run_is_shown_or_refused() -> None:
    """No line of the files of measured runs is left out."""
    refused = {name for name, _ in data()["refused"]}
    for file in data()["files"]:
        lines = (ROOT / "tests" / "ground_truth" / f"{file['name']}.jsonl").read_text("utf-8")
        names = {json.loads(line)["id"] for line in lines.splitlines() if line.strip()}
        shown = {run["id"] for name, _, run in runs() if name == file["name"]}
        assert shown | (names & refused) == names
        assert len(shown) == file["runs"]


def test_other_calculators_say_what_they_said() -> None:
    """Each answer of docs/peers.json is on the page, and their errors are of those answers."""
    peers = json.loads(PEERS.read_text("utf-8"))
    tools = {tool["name"]: tool for tool in data()["peers"]["tools"]}
    order = [run for file, _, run in runs() if file == data()["peers"]["file"]]
    assert set(tools) == {*peers, OURS}
    measured = [run["figures"][0][0] * 512 / 2**30 for run in order]
    for name, said in peers.items():
        answers = tools[name]["answers"]
        assert {run["id"]: a for run, a in zip(order, answers, strict=True) if a is not None} == {
            run: round(gib, 3) for run, gib in said.items()
        }
        off = [100 * abs(a / m - 1) for a, m in zip(answers, measured, strict=True) if a]
        assert tools[name]["overall"]["n"] == len(off)
        assert tools[name]["overall"]["mean"] == pytest.approx(mean(off), rel=0.005)


def test_the_file_is_small() -> None:
    """A phone loads it: under 220 kB."""
    assert DATA.stat().st_size < 300_000


def own_files() -> list[Path]:
    """The pages with their scripts and styles."""
    return [
        p
        for name in PAGES
        for p in (
            STATIC / f"{name}.html",
            *STATIC.glob(f"js/{name}*.js"),
            *STATIC.glob(f"css/{name}*.css"),
        )
    ]


@pytest.mark.parametrize("path", own_files(), ids=lambda path: path.name)
def test_a_page_asks_for_nothing_outside(path: Path) -> None:
    """No address outside, nothing inline that `default-src 'self'` forbids, no long file."""
    text = path.read_text("utf-8")
    outside = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert not re.search(r"https?://|\bdata:|\bblob:", outside)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=\"|<script>|javascript:", text)
    assert "innerHTML" not in text
    assert len(text.splitlines()) < 300


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_files_that_are_there(name: str) -> None:
    """What a page loads from its own room exists."""
    page = (STATIC / f"{name}.html").read_text("utf-8")
    assert f"/static/js/{name}.js" in page
    for script in STATIC.glob(f"js/{name}*.js"):
        for other in re.findall(r'from "\./(\w+\.js)"', script.read_text("utf-8")):
            assert (STATIC / "js" / other).exists(), (script.name, other)
