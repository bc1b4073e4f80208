"""The memory of one step over time as SVG, stacked by kind.

Pure functions from columns to SVG text. Time runs to the right, with one column for each instant;
memory that stays for the whole step is at the bottom of a column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap

from msgspec import Struct

from ..ledger.units import GIB
from ..tools.translation.arguments import tables
from .instants import InstantColumn, note
from .svg import round_step, svg_text

Columns = Sequence[InstantColumn]
PHASES = tables(__file__)  # names, from the longest
OFF_SCALE = 0.2  # if all columns are below this share of the card, the limit is not on the scale
WIDE = 700  # pictures from this width on have whole words
TITLE = "Memory of one GPU over time"
CHARACTER = 0.58  # average width of a character, in font sizes


class PlotFrame(Struct, frozen=True):
    """The position of the plot in the picture, and its scale: `top_bytes` at its top."""

    left: float
    top: float
    width: float
    height: float
    num_columns: int
    top_bytes: float

    @property
    def step(self) -> float:
        """The width of one column."""
        return self.width / self.num_columns

    @property
    def bottom(self) -> float:
        """The y coordinate of zero bytes."""
        return self.top + self.height

    def y(self, num_bytes: float) -> float:
        """The y coordinate of a number of bytes."""
        return self.bottom - self.height * num_bytes / self.top_bytes


def frame(
    columns: Columns, limit_bytes: int, *, width: int, wide: bool, height: int = 0
) -> PlotFrame:
    """The plot's frame; its scale includes the limit unless all columns are far below it."""
    highest = max(one.bytes for one in columns)
    shown = highest if highest < OFF_SCALE * limit_bytes else max(highest, limit_bytes)
    left, right, top = (52, 12, 46) if wide else (38, 4, 44)
    height = height or (290 if wide else 230)
    return PlotFrame(left, top, width - left - right, height, len(columns), shown * 1.08)


class Drawing(Struct, frozen=True):
    """The SVG lines of a picture, its description in words, its size and frame."""

    lines: list[str]
    words: str
    width: int
    height: float
    place: PlotFrame
    named: bool  # whether names of instants are under the columns


def drawing(
    columns: Columns,
    peak: int,
    limit_bytes: int,
    *,
    width: int,
    height: int = 0,
    titled: bool = True,
    joined: bool = False,
) -> Drawing:
    """The drawing of a step. height: of the plot, or 0; titled: slices have tooltips; joined: all
    slices of a kind are one path, in its colour without its pattern, which is a tenth of the text.
    """
    wide = width >= WIDE
    place = frame(columns, limit_bytes, width=width, wide=wide, height=height)
    named = wide and place.step >= 88
    highest = columns[peak]
    description = (
        f"{peak_words(highest)}. The card offers {limit_bytes / GIB:,.2f} GiB. "
        f"{len(columns)} instants from left to right."
    )
    stacks = (line for i, one in enumerate(columns) for line in _stack(one, i, place, titled))
    lines = [
        *_over(limit_bytes, place),
        *_grid(place),
        *(_paths(columns, place) if joined else stacks),
        *(line for line in _totals(columns, peak, place) if named),
        *_limit(limit_bytes, columns, peak, place),
        *_peak(highest, peak, limit_bytes, place),
        *_labels(columns, peak, place, wide, named),
    ]
    whole = place.bottom + (92 if named else 46)
    return Drawing(lines, description, width, whole, place, named)


def timeline(
    columns: Columns, peak: int, limit_bytes: int, *, width: int = 1000, name: str = "step"
) -> str:
    """The picture of a step as SVG; `peak` is the index of the column to mark."""
    drawn = drawing(columns, peak, limit_bytes, width=width)
    return "\n".join(
        [
            f'<svg class="step" viewBox="0 0 {width} {drawn.height:g}" role="img" '
            f'aria-labelledby="{name}-title {name}-desc" xmlns="http://www.w3.org/2000/svg">',
            f'<title id="{name}-title">{TITLE}</title>',
            f'<desc id="{name}-desc">{escape(drawn.words)}</desc>',
            *drawn.lines,
            "</svg>",
        ]
    )


def hit_areas(columns: Columns, place: PlotFrame) -> Iterator[str]:
    """A transparent rectangle over each column, for the mouse and for screen readers."""
    for i, one in enumerate(columns):
        label = f"{i + 1}: {one.title}, {one.bytes / GIB:,.2f} GiB"
        box = f'x="{place.left + i * place.step:.2f}" y="{place.top}" width="{place.step:.2f}"'
        says = f'height="{place.height}" role="img" aria-label="{escape(label)}"'
        yield f'<rect class="hit" data-column="{i}" {box} {says}/>'


def _stack(one: InstantColumn, index: int, place: PlotFrame, titled: bool) -> Iterator[str]:
    """The slices of one instant, with tooltips if `titled`."""
    gap = min(10.0, place.step * 0.12)
    x, level = place.left + index * place.step + gap / 2, 0
    for part in one.slices:
        if part.bytes == 0:
            continue
        y = place.y(level + part.bytes)
        height = place.y(level) - y
        tooltip = f"<title>{escape(note(one, part))}</title>" if titled else ""
        yield (
            f'<rect class="slice" data-column="{index}" data-kind="{part.kind}" '
            f'x="{x:.2f}" y="{y:.4f}" width="{place.step - gap:.2f}" height="{height:.4f}" '
            f'fill="url(#p-{part.kind})">{tooltip}</rect>'
        )
        level += part.bytes


def _paths(columns: Columns, place: PlotFrame) -> Iterator[str]:
    """The slices of every kind at all instants."""
    gap = min(10.0, place.step * 0.12)
    levels = [0] * len(columns)
    for number, kind in enumerate(part.kind for part in columns[0].slices):
        path = ""
        for i, one in enumerate(columns):
            low, levels[i] = levels[i], levels[i] + one.slices[number].bytes
            if levels[i] > low:
                x, width = place.left + i * place.step + gap / 2, place.step - gap
                up, down = place.y(levels[i]), place.y(low)
                path += f"M{x:.1f} {down:.1f}V{up:.1f}h{width:.1f}V{down:.1f}z"
        if path:
            yield f'<path class="slice k-{kind}" d="{path}"/>'


def ticks(top_bytes: float) -> list[float]:
    """Round levels in GiB, four to eight of them, from 0."""
    top = top_bytes / GIB
    step = round_step(top, 4, 6)
    return [i * step for i in range(int(top / step) + 1)]


def _grid(place: PlotFrame) -> Iterator[str]:
    right = place.left + place.width
    for level in ticks(place.top_bytes):
        y = place.y(level * GIB)
        yield f'<path class="grid" d="M{place.left} {y:.1f}H{right}"/>'
        yield svg_text(place.left - 7, f"{y + 4:.1f}", f"{level:,.6g}", kind="tick")
    yield svg_text(place.left - 7, place.top - 8, "GiB", kind="tick")


def _over(limit_bytes: int, place: PlotFrame) -> Iterator[str]:
    """A tint above the limit."""
    if limit_bytes <= place.top_bytes:
        size = f'width="{place.width}" height="{place.y(limit_bytes) - place.top:.2f}"'
        yield f'<rect class="over" x="{place.left}" y="{place.top}" {size}/>'


def _limit(limit_bytes: int, columns: Columns, peak: int, place: PlotFrame) -> Iterator[str]:
    """The card's limit: a line, or a note at the top where it is above the scale."""
    on_scale = limit_bytes <= place.top_bytes
    y, right = place.y(limit_bytes) if on_scale else place.top - 2, place.left + place.width
    words = f"{'' if on_scale else '↑ '}limit {limit_bytes / GIB:,.2f} GiB"
    if place.width > 500:
        words = words.replace("limit", "this card’s limit") + ("" if on_scale else ", far above")
    x, base, anchor = _limit_spot(words, limit_bytes, columns, peak, place)
    yield f'<path class="limit" d="M{place.left} {y:.2f}H{right}"/>'
    yield svg_text(x, f"{base:.2f}", words, kind="limit-label", anchor=anchor)


def _limit_spot(
    words: str, limit_bytes: int, columns: Columns, peak: int, place: PlotFrame
) -> tuple[float, float, str]:
    """Where the limit's label covers no column: on its line at one end, else above the plot.

    The end is the one that is farther from the peak, whose own label is above the plot, too.
    """
    right, width = place.left + place.width, len(words) * 12 * CHARACTER + 12
    spots = {"end": (right - 6, right - width), "start": (place.left + 6, place.left)}
    far = ("end", "start") if peak < place.num_columns / 2 else ("start", "end")
    for anchor in far:
        x, start = spots[anchor]
        first = max(0, int((start - place.left) / place.step))
        last = math.ceil((start + width - place.left) / place.step)
        if all(one.bytes <= limit_bytes for one in columns[first:last]):
            return x, max(place.y(limit_bytes), place.top - 2) - 8, anchor
    return spots[far[0]][0], place.top - 8, far[0]


def peak_words(one: InstantColumn) -> str:
    """The label of the highest instant."""
    return f"peak {one.bytes / GIB:,.2f} GiB: {one.title}"


def _peak(one: InstantColumn, index: int, limit_bytes: int, place: PlotFrame) -> Iterator[str]:
    """An outline around the highest instant, and its label, placed clear of the limit's line."""
    x, y = place.left + (index + 0.5) * place.step, place.y(one.bytes)
    gap = min(10.0, place.step * 0.12)
    start, size = x - place.step / 2 + gap / 2, f'height="{place.bottom - y:.2f}"'
    yield f'<rect class="peak" x="{start:.2f}" y="{y:.2f}" width="{place.step - gap:.2f}" {size}/>'
    above = place.y(limit_bytes) < y - 50 and y > place.top + 30
    base = y - 26 if above else place.top - 30.0
    words = peak_words(one)
    if len(words) * CHARACTER * 13 > place.width:
        words = words.partition(":")[0]
    half = len(words) * CHARACTER * 13 / 2
    middle = min(max(x, place.left + half), place.left + place.width - half)
    yield f'<path class="lead" d="M{x:.2f} {base + 5:.2f}V{y - 1:.2f}"/>'
    label = escape(words)
    yield svg_text(f"{middle:.2f}", f"{base:.2f}", label, kind="peak-label", anchor="middle")


def _totals(columns: Columns, peak: int, place: PlotFrame) -> Iterator[str]:
    """The size of every instant but the peak, above its column."""
    for i, one in enumerate(columns):
        if i != peak:
            x = place.left + (i + 0.5) * place.step
            y = place.y(one.bytes) - 5
            yield svg_text(f"{x:.2f}", f"{y:.2f}", f"{one.bytes / GIB:,.2f}", kind="total")


def short_title(one: InstantColumn) -> str:
    """An instant's title without the phase, which is written under the columns."""
    return one.title.removeprefix(f"{one.phase}, ")


def _labels(
    columns: Columns, peak: int, place: PlotFrame, wide: bool, named: bool
) -> Iterator[str]:
    """Numbers (and names if `named`) under the columns, then the phases."""
    every = math.ceil((20 if wide else 17) / place.step)
    below = 46.0 + place.bottom if named else place.bottom
    for i, one in enumerate(columns):
        x = place.left + (i + 0.5) * place.step
        bold = " at-peak" if i == peak else ""
        if i % every == 0:
            yield f'<text class="number{bold}" x="{x:.2f}" y="{place.bottom + 16}">{i + 1}</text>'
        if named:
            lines = wrap(short_title(one), int((place.step - 6) / (11 * CHARACTER)), max_lines=3)
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
    for word in PHASES[phase]:
        if len(word) * 12 * CHARACTER <= width + 4:
            middle = x + width / 2
            yield f'<text class="phase-name" x="{middle:.2f}" y="{y + 18:.1f}">{word}</text>'
            return
