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
from msgspec.structs import replace

from ..estimates.node import PhaseMemory
from ..ledger.units import GIB
from ..tools.translation.arguments import tables
from .instants import InstantColumn, note
from .life_picture import life, life_height
from .svg import CHARACTER, PlotFrame, round_step, svg_text

Columns = Sequence[InstantColumn]
PHASES = tables(__file__)  # names, from the longest
OFF_SCALE = 0.2  # if all columns are below this share of the card, the limit is not on the scale
BAR = 40  # pixels; columns that are narrower have no gap between them
WIDE = 700  # pictures from this width on have whole words
TITLE = "Memory of one GPU over time"


def frame(
    columns: Columns, limit_bytes: int, *, width: int, wide: bool, height: int = 0
) -> PlotFrame:
    """The plot's frame; its scale includes the limit unless all columns are far below it."""
    highest = max(one.bytes for one in columns)
    shown = highest if highest < OFF_SCALE * limit_bytes else max(highest, limit_bytes)
    left, right, top = (52, 12, 46) if wide else (38, 4, 44)
    height = height or (290 if wide else 230)
    return PlotFrame(left, top, width - left - right, height, len(columns), shown * 1.08)


def enlarged(columns: Columns, place: PlotFrame) -> PlotFrame:
    """The frame with the scale of these columns alone; where they are of nearly the same height, it
    does not begin at zero.
    """
    high, low = max(one.bytes for one in columns), min(one.bytes for one in columns)
    between = max(high - low, high / 100)
    beginning = 0.0 if low < between * 2 else low - between / 2
    return replace(place, top_bytes=high + between * 0.1, low_bytes=beginning)


def in_course(columns: Columns) -> bool:
    """Whether the columns are parts of a step in its course."""
    return columns[0].first >= 0


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
    whole: int = 0,
    phases: Sequence[PhaseMemory] = (),
) -> Drawing:
    """The drawing of a step.

    - height: of the plot, or 0; titled: columns have tooltips
    - joined: kinds have their colour without its pattern, and columns no tooltips
    - whole: bytes of the step's peak, where the columns are a part of it
    - phases: of the run's life, below it
    """
    wide = width >= WIDE
    place = frame(columns, limit_bytes, width=width, wide=wide, height=height)
    place = enlarged(columns, place) if whole else place
    course = in_course(columns)
    named = wide and place.step >= 88 and not course
    highest = columns[peak]
    description = (
        f"{peak_words(highest, whole)}. The card offers {limit_bytes / GIB:,.2f} GiB. "
        f"{len(columns)} {'steps in their order' if course else 'instants from left to right'}."
    )
    lines = [
        *_over(limit_bytes, place),
        *_grid(place),
        *_areas(columns, place, plain=joined),
        *(hit_areas(columns, place) if titled and not joined else ()),
        *(line for line in _totals(columns, peak, place) if named),
        *_limit(limit_bytes, columns, peak, place),
        *_peak(peak_words(highest, whole), highest, peak, limit_bytes, place),
        *(_course_labels(columns, place) if course else ()),
        *(() if course else _labels(columns, peak, place, wide, named)),
    ]
    bottom = place.bottom + (92 if named else 66 if course else 46)
    if course:
        lines += life(phases, place, bottom)
        bottom += life_height(phases, place.width)
    return Drawing(lines, description, width, bottom, place, named)


def timeline(
    columns: Columns,
    peak: int,
    limit_bytes: int,
    *,
    width: int = 1000,
    name: str = "step",
    phases: Sequence[PhaseMemory] = (),
) -> str:
    """The picture of a step as SVG; `peak` is the index of the column to mark, `phases` are those
    of the run's life.
    """
    drawn = drawing(columns, peak, limit_bytes, width=width, phases=phases)
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
    """A transparent rectangle over each column, with what it holds as its tooltip."""
    for i, one in enumerate(columns):
        box = f'x="{place.left + i * place.step:.2f}" y="{place.top}" width="{place.step:.2f}"'
        held = f"<title>{escape(note(one))}</title>"
        yield f'<rect class="hit" {box} height="{place.height}">{held}</rect>'


def _areas(columns: Columns, place: PlotFrame, *, plain: bool) -> Iterator[str]:
    """An area for each kind, stacked: a staircase, or bars where columns are wide."""
    gap = _gap(place)
    levels = [0] * len(columns)
    for number, part in enumerate(columns[0].slices):
        sizes = [one.slices[number].bytes for one in columns]
        if not any(sizes):
            continue
        above = [low + size for low, size in zip(levels, sizes, strict=True)]
        low, high = ([f"{place.y(one):.2f}" for one in ends] for ends in (levels, above))
        lefts = [f"{place.left + i * place.step + gap / 2:.2f}" for i in range(len(columns) + 1)]
        if gap:
            path = "".join(
                f"M{x} {bottom}V{top}h{place.step - gap:.2f}V{bottom}z"
                for x, bottom, top in zip(lefts, low, high, strict=False)
            )
        else:
            over = "".join(f"V{y}H{x}" for y, x in zip(high, lefts[1:], strict=True))
            under = "".join(f"V{y}H{x}" for y, x in zip(low[::-1], lefts[-2::-1], strict=True))
            path = f"M{lefts[0]} {low[0]}{over}{under}z"
        kind = part.kind
        look = f'fill="url(#p-{kind})"'
        if plain:
            yield f'<path class="slice k-{kind}" d="{path}"/>'
        else:
            yield f'<path class="slice" data-kind="{kind}" d="{path}" {look}/>'
        levels = above


def _gap(place: PlotFrame) -> float:
    """Pixels between two columns; none where they are a staircase."""
    return 0.0 if place.step < BAR else min(10.0, place.step * 0.12)


def ticks(top_bytes: float, low_bytes: float = 0) -> list[float]:
    """Round levels in GiB between two, four to eight of them."""
    top, low = top_bytes / GIB, low_bytes / GIB
    step = round_step(top - low, 4, 6)
    return [i * step for i in range(math.ceil(low / step), int(top / step) + 1)]


def _grid(place: PlotFrame) -> Iterator[str]:
    right = place.left + place.width
    for level in ticks(place.top_bytes, place.low_bytes):
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


def peak_words(one: InstantColumn, whole: int = 0) -> str:
    """The label of the highest instant; `whole`: bytes of the step's, where it may be another."""
    word = "highest here" if one.bytes < whole else "peak"
    return f"{word} {one.bytes / GIB:,.2f} GiB: {one.title}"


def _peak(
    words: str, one: InstantColumn, index: int, limit_bytes: int, place: PlotFrame
) -> Iterator[str]:
    """An outline around the highest instant, and its label, placed clear of the limit's line."""
    x, y = place.left + (index + 0.5) * place.step, place.y(one.bytes)
    gap = _gap(place)
    start, size = x - place.step / 2 + gap / 2, f'height="{place.bottom - y:.2f}"'
    yield f'<rect class="peak" x="{start:.2f}" y="{y:.2f}" width="{place.step - gap:.2f}" {size}/>'
    above = place.y(limit_bytes) < y - 50 and y > place.top + 30
    base = y - 26 if above else place.top - 30.0
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


LABEL = 26  # pixels from one layer's number to the next
AXIS = (
    "time: each step of the staircase is one layer, at its highest moment",
    "time, layer by layer",
)
ZOOMED = ("time: each step is some allocations and frees, in their order", "time, by allocations")
MERGED = (
    "time: each step is several layers, at their highest moment",
    "time, several layers a step",
)


def _course_labels(columns: Columns, place: PlotFrame) -> Iterator[str]:
    """Layers under the columns, the phases, and what the axis is."""
    merged = any(one.last > one.first for one in columns)
    runs = [*_layer_runs(columns, place)]
    last, width = max(layer for layer, _, _ in runs), min(size for _, _, size in runs)
    every = next((n for n in (1, 2, 4, 5, 8, 10, 16, 20, 32) if n * width >= LABEL), 64)
    ends = [run for run in runs if run[0] in (1, last)]
    inner = [run for run in runs if run[0] and not run[0] % every and not merged]
    shown: list[float] = []
    yield svg_text(place.left - 7, place.bottom + 16, "layer", kind="tick")
    for layer, start, size in (*ends, *inner):
        x = start + size / 2
        if layer and all(abs(x - other) >= LABEL for other in shown):
            shown.append(x)
            yield svg_text(f"{x:.2f}", place.bottom + 16, layer, kind="number")
    for layer, start, size in runs if width > 3 * LABEL else ():
        if start > place.left:
            yield f'<path class="grid" d="M{start:.2f} {place.top}V{place.bottom + 8}"/>'
        if not layer and "loss" in columns[int((start + 1 - place.left) / place.step)].title:
            yield svg_text(f"{start + size / 2:.2f}", place.bottom + 16, "loss", kind="number")
    first = 0
    several = len({one.micro_batch for one in columns if one.micro_batch >= 0}) > 1
    for (phase, batch), group in groupby(columns, key=lambda c: (c.phase, c.micro_batch)):
        count = len(list(group))
        more = f", micro-batch {batch + 1}" if several and batch >= 0 else ""
        yield from _phase(phase, first, count, place, place.bottom + 22, more)
        first += count
    parts = len({one.first for one in columns if one.layer}) < len([c for c in columns if c.layer])
    words = ZOOMED if parts else MERGED if merged else AXIS
    said = words[len(words[0]) * 12 * CHARACTER > place.width]
    x = place.left + place.width
    yield svg_text(f"{x:g}", f"{place.bottom + 60:g}", f"{said} →", kind="tick")


def _layer_runs(columns: Columns, place: PlotFrame) -> Iterator[tuple[int, float, float]]:
    """Columns of one layer: the layer, where they begin, and how wide they are."""
    start = place.left
    for (layer, _, _), group in groupby(columns, key=lambda c: (c.layer, c.phase, c.micro_batch)):
        width = len(list(group)) * place.step
        yield layer, start, width
        start += width


def _phase(
    phase: str, first: int, count: int, place: PlotFrame, y: float, more: str = ""
) -> Iterator[str]:
    """A bracket under some columns, and the longest name of their phase that fits; `more` is added
    to it where that fits, too.
    """
    x, width = place.left + first * place.step + 2, count * place.step - 4
    yield f'<path class="phase" d="M{x:.2f} {y:.1f}v4h{width:.2f}v-4"/>'
    for word in (*([PHASES[phase][0] + more] if more else []), *PHASES[phase]):
        if len(word) * 12 * CHARACTER <= width + (0 if more else 4):
            middle = x + width / 2
            yield f'<text class="phase-name" x="{middle:.2f}" y="{y + 18:.1f}">{word}</text>'
            return
