"""The picture of a step: columns side by side, slices on each other, words that fit."""

import re

import pytest

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.ledger.ledger import ACT, GPU, PARAM, RUNTIME, Entry, Instant, Ledger
from gpu_mem_calculator.ledger.source import ARITHMETIC
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.instants import InstantColumn, KindSlice, column, note
from gpu_mem_calculator.report.patterns import PATTERNS
from gpu_mem_calculator.report.picture import (
    PHASES,
    frame,
    peak_words,
    short_title,
    ticks,
    timeline,
)
from gpu_mem_calculator.run.phases import STARTUP


def test_patterns_tell_kinds_apart_without_colour() -> None:
    """No two kinds share a drawing."""
    drawings = [drawing for _, drawing in PATTERNS.values()]
    assert len(set(drawings)) == len(drawings)


def test_far_limit_leaves_the_scale() -> None:
    """A small run stays readable: the limit is a note above the chart."""
    one = InstantColumn("loss", "forward", (KindSlice("act", GIB, (("a", GIB),)),))
    assert frame([one], 80 * GIB, width=1000, wide=True).top_bytes < 2 * GIB
    assert "↑ this card’s limit 80.00 GiB, far above" in timeline([one], 0, 80 * GIB)
    assert "↑" not in timeline([one], 0, 2 * GIB)


@pytest.mark.parametrize("num_columns", [1, 8, 20, 40])
@pytest.mark.parametrize("width", [360, 1000])
def test_columns_stay_inside_the_picture(num_columns: int, width: int) -> None:
    """However many instants, columns lie side by side between the margins."""
    columns = [
        InstantColumn(f"t{i}", "forward", (KindSlice("act", GIB, ()),)) for i in range(num_columns)
    ]
    picture = timeline(columns, 0, 2 * GIB, width=width)
    (path,) = re.findall(r'class="slice".*? d="([^"]+)"', picture)
    bars = re.findall(r"M([\d.]+) [\d.]+V[\d.]+h([\d.]+)V", path)
    edges = [float(n) for x, w in bars for n in (x, float(x) + float(w))]
    edges = edges or [float(x) for x in re.findall(r"H([\d.]+)", path)][:num_columns]
    assert len(edges) == num_columns * (2 if bars else 1)
    assert edges == sorted(edges)
    assert edges[0] > 0
    assert edges[-1] < width


@pytest.mark.parametrize("width", [320, 390, 700, 1000])
@pytest.mark.parametrize("heights", [(4, 9, 9, 9), (9, 9, 9, 4), (9, 9, 9, 9), (4, 4, 4, 9), (9,)])
def test_label_of_the_limit_covers_no_column(width: int, heights: tuple[int, ...]) -> None:
    """It stands on its line where no column is as high, else above the plot, whole in any case."""
    columns = [
        InstantColumn(f"t{i}", "forward", (KindSlice("act", high * GIB, ()),))
        for i, high in enumerate(heights)
    ]
    picture = timeline(columns, heights.index(9), 5 * GIB, width=width)
    label = re.search(r'<text class="limit-label" x="([\d.]+)" y="([\d.]+)"([^>]*)>(.*?)<', picture)
    assert label is not None
    x, base, wide = float(label[1]), float(label[2]), 7 * len(label[4])
    left = x - wide if "end" in label[3] else x
    assert 0 <= left <= left + wide <= width
    (path,) = re.findall(r'class="slice".*? d="([^"]+)"', picture)
    bars = re.findall(r"M([\d.]+) [\d.]+V([\d.]+)h([\d.]+)V", path)
    assert len(bars) == len(heights)
    for start, top, size in bars:
        beside = float(start) >= left + wide or float(start) + float(size) <= left
        assert beside or float(top) > base


def test_untitled_instant_goes_by_its_name() -> None:
    """An instant without a title is called by its name."""
    instant = Instant(name="a", phase="forward")
    assert column(Ledger((instant,), ()), instant).title == "a"


@pytest.mark.parametrize("top", [0.001, 0.7, 1, 3.1, 42, 79.2, 9800])
def test_ticks_are_few_and_round(top: float) -> None:
    """An axis has three to seven levels, all within the chart."""
    levels = ticks(top * GIB)
    assert 3 <= len(levels) <= 7
    assert levels[0] == 0
    assert levels[-1] <= top * (1 + 1e-9)


def test_words_of_the_picture() -> None:
    """Titles are shortened by the phase that is written under them; the peak says all."""
    one = InstantColumn(
        "backward, dense layers: last layer", "backward", (KindSlice("act", 3 * GIB, ()),)
    )
    assert short_title(one) == "dense layers: last layer"
    assert peak_words(one) == "peak 3.00 GiB: backward, dense layers: last layer"


def test_column_holds_what_is_alive_on_the_gpu() -> None:
    """Copies count, other places and other instants do not, and the largest entry is first."""
    instant = Instant(name="a", phase="forward", title="forward")
    rows = [
        ("x", PARAM, 3, {"a": 1}, GPU),
        ("kept", ACT, 2, {"a": 5}, GPU),
        ("work", ACT, 70, {"a": 1, "b": 1}, GPU),
        ("late", ACT, 9, {"a": 0, "b": 1}, GPU),
        ("host", PARAM, 99, {"a": 1}, "cpu"),
    ]
    entries = tuple(
        Entry(name=name, kind=kind, bytes=size, live=live, source=ARITHMETIC, place=place)
        for name, kind, size, live, place in rows
    )
    one = column(Ledger((instant,), entries), instant, [("CUDA context", 4)])
    held = {part.kind: part.entries for part in one.slices if part.bytes}
    assert held == {
        PARAM: (("x", 3),),
        ACT: (("work", 70), ("kept", 10)),
        RUNTIME: (("CUDA context", 4),),
    }
    assert one.bytes == 87


def test_note_names_the_largest_entries() -> None:
    """Pointing at a column says what it is, how much of each kind, and its largest entry."""
    entries = tuple((name, GIB) for name in "abcde")
    slices = KindSlice(PARAM, 2 * GIB, (("weights", 2 * GIB),)), KindSlice(ACT, 5 * GIB, entries)
    assert note(InstantColumn("loss", "forward", slices)).splitlines() == [
        "loss: 7.00 GiB",
        "activations 5.00: a 1.00 and 4 more",
        "parameters 2.00: weights 2.00",
    ]


def test_long_peak_titles_are_cut_where_there_is_no_room() -> None:
    """A narrow picture keeps the size and leaves the title to the list below."""
    one = InstantColumn(
        "backward of the loss, later micro-batch", "backward", (KindSlice(ACT, GIB, ()),)
    )
    assert f">{peak_words(one)}</text>" in timeline([one], 0, GIB, width=1000)
    assert ">peak 1.00 GiB</text>" in timeline([one], 0, GIB, width=360)


def test_every_phase_has_its_words() -> None:
    """The picture has no word of its own for a phase that is new."""
    missing = {STARTUP, *STEP} - PHASES.keys()
    assert not missing, f"add {missing} to [picture] of report/tables.toml"
