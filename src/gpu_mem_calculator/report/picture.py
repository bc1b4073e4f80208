"""A ledger as a picture: the memory of one step over time, stacked by what it is for.

Pure functions from columns to SVG text. Time runs to the right, one column for each instant of
the step; what stays for the whole step is at the bottom of a column, what comes and goes on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap

from msgspec import Struct

from ..ledger.units import GIB
from .instants import InstantColumn, note

PHASES = {
    "startup": ("start-up", "start"),
    "forward": ("forward", "fwd"),
    "backward": ("backward", "bwd"),
    "optimizer": ("optimizer", "opt"),
    "prefill": ("prefill", "prefill"),
    "decode": ("decode", "decode"),
    "serve": ("serving", "serve"),
}
OFF_SCALE = 0.2  # below this share of the card the limit leaves the chart, or nothing is seen
WIDE = 700  # from this width on there is room for whole words
TITLE = "Memory of one GPU over time"
CHARACTER = 0.58  # average width of a character, in font sizes


class PlotFrame(Struct, frozen=True, kw_only=True):
    """Where the plot lies in the picture, and what its height means."""

    left: float
    top: float
    width: float
    height: float
    num_columns: int
    top_bytes: float

    @property
    def step(self) -> float:
        """Width of one instant."""
        return self.width / self.num_columns

    @property
    def bottom(self) -> float:
        """Where zero bytes are."""
        return self.top + self.height

    def y(self, num_bytes: float) -> float:
        """How far down a level is drawn."""
        return self.bottom - self.height * num_bytes / self.top_bytes


def frame(
    columns: Sequence[InstantColumn], limit_bytes: int, *, width: int, wide: bool, height: int = 0
) -> PlotFrame:
    """The plot's place, with room on top for the limit where it can be shown."""
    highest = max(one.bytes for one in columns)
    shown = highest if highest < OFF_SCALE * limit_bytes else max(highest, limit_bytes)
    left, right, top = (52, 12, 46) if wide else (38, 4, 44)
    return PlotFrame(
        left=left, top=top, width=width - left - right, height=height or (290 if wide else 230),
        num_columns=len(columns), top_bytes=shown * 1.08,
    )  # fmt: skip


class Drawing(Struct, frozen=True, kw_only=True):
    """The lines of a picture, what it says in words, and how much room it takes."""

    lines: list[str]
    words: str
    width: int
    height: float
    place: PlotFrame
    named: bool  # whether instants have their names under them


def drawing(
    columns: Sequence[InstantColumn], peak: int, limit_bytes: int, *, width: int, height: int = 0,
    titled: bool = True,
) -> Drawing:  # fmt: skip
    """A step drawn for a width; `height` is the plot's, `titled` slices have notes to point at."""
    wide = width >= WIDE
    place = frame(columns, limit_bytes, width=width, wide=wide, height=height)
    named = wide and place.step >= 88
    highest = columns[peak]
    say = (f"{peak_words(highest)}. The card offers {limit_bytes / GIB:,.2f} GiB. "
           f"{len(columns)} instants from left to right.")  # fmt: skip
    lines = [
        *_over(limit_bytes, place),
        *_grid(place),
        *(line for i, one in enumerate(columns) for line in _stack(one, i, place, titled)),
        *(line for line in _totals(columns, peak, place) if named),
        *_limit(limit_bytes, columns, peak, place),
        *_peak(highest, peak, limit_bytes, place),
        *_labels(columns, peak, place, wide, named),
    ]
    return Drawing(lines=lines, words=say, width=width, named=named, place=place,
                   height=place.bottom + (92 if named else 46))  # fmt: skip


def timeline(
    columns: Sequence[InstantColumn],
    peak: int,
    limit_bytes: int,
    *,
    width: int = 1000,
    name: str = "step",
) -> str:
    """The picture of a step as SVG. `peak` is the index of the column to mark."""
    made = drawing(columns, peak, limit_bytes, width=width)
    return "\n".join([
        f'<svg class="step" viewBox="0 0 {width} {made.height:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" xmlns="http://www.w3.org/2000/svg">',
        f'<title id="{name}-title">{TITLE}</title>',
        f'<desc id="{name}-desc">{escape(made.words)}</desc>', *made.lines, "</svg>",
    ])  # fmt: skip


def hits(columns: Sequence[InstantColumn], place: PlotFrame) -> Iterator[str]:
    """A whole column to point at, or to reach with the keyboard, for every instant."""
    for i, one in enumerate(columns):
        said = f"{i + 1}: {one.title}, {one.bytes / GIB:,.2f} GiB"
        yield (f'<rect class="hit" data-column="{i}" x="{place.left + i * place.step:.2f}" '
               f'y="{place.top}" width="{place.step:.2f}" height="{place.height}" '
               f'role="img" aria-label="{escape(said)}"/>')  # fmt: skip


def _stack(one: InstantColumn, index: int, place: PlotFrame, titled: bool) -> Iterator[str]:
    """One instant's slices, each with a note of what it is."""
    gap = min(10.0, place.step * 0.12)
    x, level = place.left + index * place.step + gap / 2, 0
    for part in one.slices:
        if part.bytes == 0:
            continue
        y = place.y(level + part.bytes)
        tall = place.y(level) - y
        said = f"<title>{escape(note(one, part))}</title>" if titled else ""
        yield (
            f'<rect class="slice" data-column="{index}" data-kind="{part.kind}" '
            f'x="{x:.2f}" y="{y:.4f}" width="{place.step - gap:.2f}" height="{tall:.4f}" '
            f'fill="url(#p-{part.kind})">{said}</rect>'
        )
        level += part.bytes


def ticks(top_bytes: float) -> list[float]:
    """Round levels in GiB, four to eight of them, from 0 up."""
    top = top_bytes / GIB
    size = 10.0 ** math.floor(math.log10(top / 4))
    step = next(size * m for m in (1, 2, 5, 10) if top / (size * m) <= 6)
    return [i * step for i in range(int(top / step) + 1)]


def _grid(place: PlotFrame) -> Iterator[str]:
    right = place.left + place.width
    for level in ticks(place.top_bytes):
        y = place.y(level * GIB)
        yield f'<path class="grid" d="M{place.left} {y:.1f}H{right}"/>'
        yield f'<text class="tick" x="{place.left - 7}" y="{y + 4:.1f}">{level:,.6g}</text>'
    yield f'<text class="tick" x="{place.left - 7}" y="{place.top - 8}">GiB</text>'


def _over(limit_bytes: int, place: PlotFrame) -> Iterator[str]:
    """A tint on what lies above the limit."""
    if limit_bytes <= place.top_bytes:
        yield (f'<rect class="over" x="{place.left}" y="{place.top}" width="{place.width}" '
               f'height="{place.y(limit_bytes) - place.top:.2f}"/>')  # fmt: skip


def _limit(
    limit_bytes: int, columns: Sequence[InstantColumn], peak: int, place: PlotFrame
) -> Iterator[str]:
    """The card's limit: a line across, or a note at the top where it is far above."""
    seen = limit_bytes <= place.top_bytes
    y, right = place.y(limit_bytes) if seen else place.top - 2, place.left + place.width
    words = f"{'' if seen else '↑ '}limit {limit_bytes / GIB:,.2f} GiB"
    if place.width > 500:
        words = words.replace("limit", "this card’s limit") + ("" if seen else ", far above")
    at_right = peak < place.num_columns / 2
    x, anchor = (right - 6, "end") if at_right else (place.left + 6, "start")
    yield f'<path class="limit" d="M{place.left} {y:.2f}H{right}"/>'
    if columns[peak].bytes > limit_bytes:
        long = len(words) * 12 * CHARACTER + 8
        yield (f'<rect class="pill" x="{right - long if at_right else place.left:.2f}" '
               f'y="{y - 21:.2f}" width="{long:.2f}" height="18" rx="3"/>')  # fmt: skip
    yield f'<text class="limit-label" x="{x}" y="{y - 8:.2f}" text-anchor="{anchor}">{words}</text>'


def peak_words(one: InstantColumn) -> str:
    """What is written at the highest instant."""
    return f"peak {one.bytes / GIB:,.2f} GiB: {one.title}"


def _peak(one: InstantColumn, index: int, limit_bytes: int, place: PlotFrame) -> Iterator[str]:
    """An outline around the highest instant, its name and size above, clear of the limit's line."""
    x, y = place.left + (index + 0.5) * place.step, place.y(one.bytes)
    gap = min(10.0, place.step * 0.12)
    yield (f'<rect class="peak" x="{x - place.step / 2 + gap / 2:.2f}" y="{y:.2f}" '
           f'width="{place.step - gap:.2f}" height="{place.bottom - y:.2f}"/>')  # fmt: skip
    roomy = place.y(limit_bytes) < y - 50 and y > place.top + 30
    base = y - 26 if roomy else place.top - 30.0
    words = peak_words(one)
    if len(words) * CHARACTER * 13 > place.width:
        words = words.partition(":")[0]
    half = len(words) * CHARACTER * 13 / 2
    middle = min(max(x, place.left + half), place.left + place.width - half)
    yield f'<path class="lead" d="M{x:.2f} {base + 5:.2f}V{y - 1:.2f}"/>'
    yield (f'<text class="peak-label" x="{middle:.2f}" y="{base:.2f}" '
           f'text-anchor="middle">{escape(words)}</text>')  # fmt: skip


def _totals(columns: Sequence[InstantColumn], peak: int, place: PlotFrame) -> Iterator[str]:
    """The size of every other instant above its column."""
    for i, one in enumerate(columns):
        if i != peak:
            x = place.left + (i + 0.5) * place.step
            y = place.y(one.bytes) - 5
            yield f'<text class="total" x="{x:.2f}" y="{y:.2f}">{one.bytes / GIB:,.2f}</text>'


def short(one: InstantColumn) -> str:
    """An instant's title without the phase that is written under it anyway."""
    return one.title.removeprefix(f"{one.phase}, ")


def _labels(
    columns: Sequence[InstantColumn], peak: int, place: PlotFrame, wide: bool, named: bool
) -> Iterator[str]:
    """Numbers (and words where they fit) under the columns, then the phases."""
    every = math.ceil((20 if wide else 17) / place.step)
    below = 46.0 + place.bottom if named else place.bottom
    for i, one in enumerate(columns):
        x = place.left + (i + 0.5) * place.step
        bold = " at-peak" if i == peak else ""
        if i % every == 0:
            yield f'<text class="number{bold}" x="{x:.2f}" y="{place.bottom + 16}">{i + 1}</text>'
        if named:
            lines = wrap(short(one), int((place.step - 6) / (11 * CHARACTER)), max_lines=3)
            for row, line in enumerate(lines):
                y = place.bottom + 31 + 13 * row
                yield f'<text class="name{bold}" x="{x:.2f}" y="{y}">{escape(line)}</text>'
    first = 0
    for phase, group in groupby(columns, key=lambda c: c.phase):
        count = len(list(group))
        yield from _phase(phase, first, count, place, below + 22)
        first += count


def _phase(phase: str, first: int, count: int, place: PlotFrame, y: float) -> Iterator[str]:
    x, width = place.left + first * place.step + 2, count * place.step - 4
    yield f'<path class="phase" d="M{x:.2f} {y:.1f}v4h{width:.2f}v-4"/>'
    for word in PHASES.get(phase, (phase,)):
        if len(word) * 12 * CHARACTER <= width + 4:
            middle = x + width / 2
            yield f'<text class="phase-name" x="{middle:.2f}" y="{y + 18:.1f}">{word}</text>'
            return
