"""The report in pieces: the same words, safe for a strict page, drawn for its width."""

import re
from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator.advice.serving.answers import answers
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.fit_verdict import CLEAR
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.html import html_report
from gpu_mem_calculator.report.instants import KindSlice
from gpu_mem_calculator.report.live import LISTED, entries_of, look
from gpu_mem_calculator.report.serving.html import serving_page
from tests.report.test_html import RUNS, SMALL, read

SERVERS: dict[str, dict[str, Any]] = {
    "vllm": {
        "model": {"name": "llama3.1-8b"},
        "inference": {"engine": "vllm"},
        "hardware": {"gpu": "h100-80gb-sxm"},
    },
    "generate": {
        "model": SMALL,
        "inference": {"engine": "transformers"},
        "hardware": {"gpu": "h100-80gb-sxm"},
    },
    "too large": {
        "model": {"name": "llama3.1-70b"},
        "inference": {"engine": "vllm"},
        "hardware": {"gpu": "h100-80gb-sxm"},
    },
}
ALL = {**RUNS, **SERVERS}
ALWAYS = {
    "patterns",
    "setup",
    "verdict",
    "picture",
    "legend",
    "key",
    "instants",
    "breakdown",
    "stages",
    "phases",
    "numbers",
    "ledger",
    "remarks",
}


@cache
def estimated(name: str, replay: bool = False) -> Estimate:
    """A run's estimate, made once."""
    return full_estimate(ALL[name], replay=replay)


@cache
def seen(name: str, width: int = 1000) -> dict[str, Any]:
    """What a page shows of a run before its replay."""
    found = answers(estimated(name)) if name in SERVERS else None
    return look(estimated(name), found, width=width, pending=True)


@pytest.mark.parametrize("name", ALL)
def test_every_piece_is_safe_in_a_strict_page(name: str) -> None:
    """No style, script, link or handler, balanced, and no id but those of the patterns."""
    for part, html in seen(name)["parts"].items():
        reader = read(html)
        assert reader.open == []
        assert not {tag for tag, _ in reader.tags} & {"script", "style", "a", "img", "link"}
        for _, attributes in reader.tags:
            assert not [key for key in attributes if key == "style" or key.startswith("on")]
            assert "id" not in attributes or part == "patterns"


@pytest.mark.parametrize("name", ALL)
def test_fills_are_among_the_patterns(name: str) -> None:
    """Every pattern that a fill refers to is defined."""
    parts = seen(name)["parts"]
    made = set(re.findall(r'id="([\w-]+)"', parts["patterns"]))
    assert set(re.findall(r"url\(#([\w-]+)\)", "".join(parts.values()))) <= made


@pytest.mark.parametrize("name", RUNS)
def test_pieces_are_those_of_the_report(name: str) -> None:
    """A replayed run's pieces are in its HTML report, word for word."""
    estimate = estimated(name, replay=True)
    parts = look(estimate, None, width=1000)["parts"]
    assert set(parts) == ALWAYS
    page = html_report(estimate)
    for part in ALWAYS - {"picture", "verdict"}:
        assert parts[part] in page
    assert "…" not in parts["numbers"]


def test_pieces_of_a_server_are_those_of_its_report() -> None:
    """A server's report has its capacity, its speed, changes, and the command that starts it."""
    estimate = estimated("vllm")
    found = answers(estimate)
    parts = look(estimate, found, width=1000)["parts"]
    assert set(parts) == ALWAYS | {"room", "speed", "changes", "start"}
    page = serving_page(estimate, found)
    for part in ("room", "speed", "changes", "start", "numbers"):
        assert parts[part] in page


def test_a_server_that_does_not_start_has_no_room() -> None:
    """Only what would help is left, and the verdict says why."""
    parts = seen("too large")["parts"]
    assert set(parts) == ALWAYS | {"changes"}
    assert "✗ does not fit: weights + profiling" in parts["verdict"]


@pytest.mark.parametrize("width", [320, 699, 700, 1000, 1600])
@pytest.mark.parametrize("name", ["tiny", "zero3", "vllm"])
def test_picture_is_as_wide_as_asked(name: str, width: int) -> None:
    """Columns are inside, each can be pointed at as a whole, and slices carry no notes."""
    found = seen(name, width)
    picture = found["parts"]["picture"]
    tags = read(picture).tags
    assert tags[0][1]["width"] == str(width)
    hits = [a for _, a in tags if a.get("class") == "hit"]
    slices = [a for _, a in tags if a.get("class") == "slice"]
    assert [a["data-column"] for a in hits] == [str(i) for i in range(len(found["columns"]))]
    for each in hits + slices:
        assert 0 <= float(each["x"] or 0) <= width - float(each["width"] or 0)
    for index, one in enumerate(found["columns"]):
        kinds = [a["data-kind"] for a in slices if a["data-column"] == str(index)]
        assert kinds == [part["kind"] for part in one["slices"]]
    assert "<title>" not in picture


def test_instants_are_named_once() -> None:
    """Names are under the columns where they fit, else in a list."""
    assert seen("tiny", 1600)["parts"]["key"] == ""
    assert seen("tiny", 320)["parts"]["key"].count("<li") >= 5
    assert 'class="name' not in seen("tiny", 320)["parts"]["picture"]
    assert 'class="name' in seen("tiny", 1600)["parts"]["picture"]


@pytest.mark.parametrize("name", ALL)
def test_columns_add_up(name: str) -> None:
    """Entries make their slice, slices their column, and the peak is the result's."""
    columns = seen(name)["columns"]
    for one in columns:
        assert one["bytes"] == sum(part["bytes"] for part in one["slices"])
        for part in one["slices"]:
            assert part["bytes"] == sum(size for _, size in part["entries"]) > 0
    result = estimated(name).result
    peak = next(one for one in columns if one["title"] == result.peak_instant)
    assert peak["bytes"] == result.allocated_bytes + result.outside_torch_bytes


def test_long_lists_of_entries_end_with_the_rest() -> None:
    """The largest are named, the others counted."""
    entries = tuple((f"e{i}", 100 - i) for i in range(LISTED + 3))
    listed = entries_of(KindSlice("act", sum(size for _, size in entries), entries))
    assert listed[:2] == [["e0", 100], ["e1", 99]]
    assert listed[LISTED:] == [["3 more", 88 + 87 + 86]]
    assert len(entries_of(KindSlice("act", 1, entries[:LISTED]))) == LISTED


def test_what_a_replay_knows_is_on_its_way() -> None:
    """Five numbers wait, visibly; without anything to wait for they are called not replayed."""
    estimate = estimated("ddp")
    waiting = look(estimate, None, width=800, pending=True)["parts"]
    assert waiting["numbers"].count('<span class="pending">…</span>') == 5
    assert "is being replayed" in waiting["verdict"]
    alone = look(estimate, None, width=800)["parts"]
    assert alone["numbers"].count("not replayed") == 5
    assert "pending" not in "".join(alone.values())
    assert "pending" not in "".join(seen("vllm")["parts"].values())


def test_verdict_says_it_in_words_and_figures() -> None:
    """Needs, has, to spare or short, where, and a gauge that is not colour alone."""
    estimate = estimated("ddp", replay=True)
    result, html = estimate.result, look(estimate, None, width=800)["parts"]["verdict"]
    said = " ".join("".join(read(html).words).split())
    assert f"needs {result.total_memory_per_gpu_gb:,.1f} of " in said
    assert f"✓ fits, {result.headroom_bytes / GIB:,.1f} GiB to spare" in said
    assert result.peak_instant in said
    assert f'<rect class="taken" width="{result.memory_utilization_percent:.2f}%"' in html


def test_until_the_replay_is_there_the_verdict_is_a_range() -> None:
    """From the tensors to the most that a run ever needs for them; no sign of a verdict yet."""
    html, result = seen("ddp")["parts"]["verdict"], estimated("ddp").result
    said = " ".join("".join(read(html).words).split())
    least, percent = result.total_memory_per_gpu_gb, result.memory_utilization_percent
    assert f"needs about {least:,.1f} to {CLEAR * least:,.1f} of " in said
    assert "checking whether it fits" in said
    assert not set("✓✗?") & set(said)
    assert html.startswith('<div class="verdict about">')
    assert f'<rect class="maybe" width="{min(100, CLEAR * percent):.2f}%"' in html


def test_tensors_that_do_not_fit_need_no_replay() -> None:
    """The page says so at once."""
    html = seen("huge")["parts"]["verdict"]
    assert "✗ does not fit" in html
    assert "GiB short" in html
    assert "needs <strong>at least " in html
