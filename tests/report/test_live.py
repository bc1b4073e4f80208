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
from tests.report.test_html import RUNS, SMALL, areas, read

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
QLORA: dict[str, Any] = {
    "model": {"name": "llama3.1-8b"},
    "training": {
        "precision": "bf16_pure",
        "lora": {"r": 16},
        "quantization": "nf4",
        "upcast_unquantized": True,
    },
    "hardware": {"gpu": "rtx-4090"},
    "engine": {"type": "pytorch_ddp"},
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
    assert set(parts) == ALWAYS | {"room", "pace", "speed", "changes", "start"}
    page = serving_page(estimate, found)
    for part in ("room", "speed", "changes", "start", "numbers"):
        assert parts[part] in page


def test_a_server_that_does_not_start_has_no_room() -> None:
    """Only what would help is left, and the verdict says why."""
    parts = seen("too large")["parts"]
    assert set(parts) == ALWAYS | {"changes", "pace"}
    assert parts["pace"] == ""
    assert "✗ does not fit: weights + profiling" in parts["verdict"]


@pytest.mark.parametrize("width", [320, 699, 700, 1000, 1600])
@pytest.mark.parametrize("name", ["tiny", "zero3", "vllm"])
def test_picture_is_as_wide_as_asked(name: str, width: int) -> None:
    """Areas are inside, one for each kind and as wide as all columns, and carry no notes."""
    found = seen(name, width)
    picture = found["parts"]["picture"]
    tags = read(picture).tags
    assert tags[0][1]["width"] == str(width)
    place = found["place"]
    assert 0 < place.left < place.left + place.width <= width
    drawn = areas(picture)
    kinds = {part["kind"] for one in found["columns"] for part in one["slices"]}
    assert set(drawn) == kinds
    for each in drawn.values():
        assert len(each) == len(found["columns"])
    for index, one in enumerate(found["columns"]):
        tall = {part["kind"]: part["bytes"] for part in one["slices"]}
        for kind, each in drawn.items():
            low, high = each[index]
            wanted = tall.get(kind, 0) / place.top_bytes * place.height
            assert low - high == pytest.approx(wanted, abs=0.02)
    assert "<title>" not in picture


@pytest.mark.parametrize("width", [320, 1000])
def test_a_part_of_the_step_is_enlarged(width: int) -> None:
    """Its stretches alone are drawn, in parts whose tensors have names, on a scale of their own."""
    estimate = estimated("tiny")
    whole = look(estimate, None, width=width)
    part = look(estimate, None, width=width, window=(1, 2))
    assert whole["zoom"] is None
    shown = part["zoom"]["columns"]
    assert part["columns"] == whole["columns"]
    assert {one["first"] for one in shown} == {1, 2}
    assert len(shown) > 2
    titles = [one["title"] for one in shown]
    assert any(": " in title for title in titles)
    assert max(one["bytes"] for one in shown) < whole["place"].top_bytes
    assert part["place"].top_bytes < whole["place"].top_bytes
    beyond = look(estimate, None, width=width, window=(90, 99))  # of a run with more layers
    assert beyond["zoom"]["columns"][-1]["last"] == whole["stretches"] - 1


def test_before_a_replay_columns_have_only_kinds() -> None:
    """Then names follow; the bytes are the same."""
    quick, slow = seen("zero3"), look(estimated("zero3"), None, width=1000)
    assert "instants" not in quick["parts"]
    for one, other in zip(quick["columns"], slow["columns"], strict=True):
        sizes = [{part["kind"]: part["bytes"] for part in each["slices"]} for each in (one, other)]
        assert sizes[0] == sizes[1]
    names = {
        name for one in slow["columns"] for part in one["slices"] for name, _ in part["entries"]
    }
    assert any(name.endswith(": kept for backward") for name in names)


def test_instants_are_named_once() -> None:
    """Names are under the columns where they fit, else in a list; a step has its layers there."""
    assert seen("vllm", 1600)["parts"]["key"] == ""
    assert seen("vllm", 320)["parts"]["key"].count("<li") >= 3
    assert 'class="name' not in seen("vllm", 320)["parts"]["picture"]
    assert 'class="name' in seen("vllm", 1600)["parts"]["picture"]
    assert seen("tiny")["parts"]["key"] == ""
    assert ">layer</text>" in seen("tiny")["parts"]["picture"]


@pytest.mark.parametrize("name", ALL)
def test_columns_add_up(name: str) -> None:
    """Entries make their slice, slices their column, and the peak is the result's."""
    columns = seen(name)["columns"]
    for one in columns:
        assert one["bytes"] == sum(part["bytes"] for part in one["slices"])
        for part in one["slices"]:
            named = sum(size for _, size in part["entries"])
            assert part["bytes"] >= named
            assert part["bytes"] == named or seen(name)["stretches"]
    result = estimated(name).result
    peak = columns[seen(name)["peak"]]
    assert peak["title"] == result.peak_instant
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


def test_a_recipe_says_what_other_tools_need() -> None:
    """As the command line does; not while a replay is awaited, nor of a training of all weights."""
    estimate = full_estimate(QLORA, replay=False)
    said = look(estimate, None, width=800)["parts"]["remarks"]
    for tool in ("transformers.Trainer", "TRL", "LLaMA-Factory", "Axolotl"):
        assert tool in said
    assert "Axolotl" not in look(estimate, None, width=800, pending=True)["parts"]["remarks"]
    assert "Axolotl" not in seen("ddp")["parts"]["remarks"]
