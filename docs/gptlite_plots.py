"""The two pictures of gptlite.md, as SVG: no script, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from gptlite_rows import SMALL, Largest, Memory, parameters, percent, width

WIDE, LEFT, RIGHT, LINE = 860, 176, 190, 30
STYLE = """
svg { --paper: #ffffff; --ink: #1b2027; --soft: #566070; --line: #dde1e7; --mark: #b3430c;
  --held: #0072b2; --step: #9ecae8; --good: #00795c; background: var(--paper);
  font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
@media screen and (prefers-color-scheme: dark) {
  svg { --paper: #14171c; --ink: #e7eaef; --soft: #a3adba; --line: #313842; --mark: #ff9d6e;
    --held: #4aa3dc; --step: #23506f; --good: #3ecfa4; }
}
text { fill: var(--soft); } .paper { fill: var(--paper); } .name { fill: var(--ink); }
.title { font-size: 17px; font-weight: 650; fill: var(--ink); } .grid { stroke: var(--line); }
.held { fill: var(--held); } .step { fill: var(--step); }
.said { stroke: var(--ink); stroke-width: 2; fill: none; }
.ran { fill: var(--good); } .died { stroke: var(--mark); stroke-width: 2.4; fill: none; }
.end { text-anchor: end; } .mid { text-anchor: middle; }
""".strip()


def svg(title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """A whole file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height:g}" role="img" '
            'aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDE}" height="{height:g}"/>',
            text(16, 28, title, "title"),
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """One line of it."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def rect(x: float, y: float, size: tuple[float, float], kind: str) -> str:
    """A filled box."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:g}" class="{kind}"/>'
    )


def path(where: str, kind: str) -> str:
    """Lines."""
    return f'<path d="{where}" class="{kind}"/>'


def axis(low: float, high: float) -> float:
    """Pixels of one unit."""
    return (WIDE - LEFT - RIGHT) / (high - low)


def grid(
    ticks: Sequence[int], low: float, scale: float, span: tuple[float, float]
) -> Iterator[str]:
    """Upright lines with their numbers below."""
    for tick in ticks:
        x = LEFT + (tick - low) * scale
        yield path(f"M{x:.1f} {span[0]:g}V{span[1]:g}", "grid")
        yield text(x, span[1] + 18, str(tick), "mid")


def memory(found: Sequence[Memory]) -> str:
    """Bars of what was measured, and a line where the estimate is."""
    most = max(max(one.measured, one.estimated) for one in found)
    scale, top = axis(0, most), 76
    end = top + LINE * len(found)
    parts = [
        rect(16, 43, (12, 12), "held"),
        text(34, 54, "held between steps"),
        rect(180, 43, (12, 12), "step"),
        text(198, 54, "what a step adds at its peak"),
        path("M404 41V57", "said"),
        text(412, 54, "estimate of the peak"),
        text(WIDE - 16, 54, "peak, error of the estimate", "end"),
        *grid(range(0, int(most) + 1, 2), 0, scale, (top - 6, end)),
        text(LEFT, end + 38, "GiB allocated on one rank of 8, one sequence of 2048"),
    ]
    for number, one in enumerate(found):
        y = top + LINE * number
        parts += [
            text(LEFT - 10, y + 15, one.name, "name end"),
            rect(LEFT, y, (one.held * scale, 20), "held"),
            rect(LEFT + one.held * scale, y, ((one.measured - one.held) * scale, 20), "step"),
            path(f"M{LEFT + one.estimated * scale:.1f} {y - 4}V{y + 24}", "said"),
            text(WIDE - 84, y + 15, f"{one.measured:.2f}", "name end"),
            text(WIDE - 16, y + 15, percent(one.off), "end"),
        ]
    worst = max((abs(one.off) for one in found), default=0)
    return svg(
        "GPT-lite at GPT-3 Small's size: measured peak, and the estimate",
        f"{len(found)} configurations; the estimate is off by at most {worst:.2f} %",
        end + 54,
        parts,
    )


def ladder(found: Sequence[Largest]) -> str:
    """The predicted size of each configuration, and the sizes that were tried."""
    ordered = sorted(found, key=lambda one: -(one.room or 10**6))
    every = [n for one in found for n in (one.size, *one.trained, *one.failed)]
    low, high = SMALL - 1, max(every) + 1
    scale, top = axis(low, high), 76
    parts = [
        path("M16 41h16v16h-16z", "said"),
        text(40, 54, "predicted largest"),
        '<circle cx="186" cy="49" r="5" class="ran"/>',
        text(198, 54, "trained"),
        path("M268 44l10 10m0-10-10 10", "died"),
        text(286, 54, "ran out of memory"),
        text(WIDE - 16, 54, "layers × width, parameters", "end"),
    ]
    y = top
    rows: list[str] = []
    for room, here in groupby(ordered, key=lambda one: one.room):
        rows.append(text(16, y + 15, "on a whole H200" if room is None else f"in {room} GiB"))
        y += LINE
        for one in here:
            rows += size_marks(one, y, low, scale)
            y += LINE
    ticks = range(-(-low // 4) * 4, high + 1, 4)
    parts += [
        *grid(ticks, low, scale, (top - 6, y)),
        *rows,
        text(LEFT, y + 38, "layers; the width is 64 times as many"),
    ]
    return svg(
        "The largest GPT-lite that trains: predicted, and tried",
        f"{len(found)} configurations",
        y + 54,
        parts,
    )


def size_marks(one: Largest, y: float, low: float, scale: float) -> Iterator[str]:
    """One configuration's line."""

    def at(size: int) -> float:
        return LEFT + (size - low) * scale

    yield text(LEFT - 10, y + 15, one.name, "name end")
    yield path(f"M{at(one.size) - 8:.1f} {y + 2}h16v16h-16z", "said")
    for size in one.trained:
        yield f'<circle cx="{at(size):.1f}" cy="{y + 10}" r="5" class="ran"/>'
    for size in one.failed:
        yield path(f"M{at(size) - 5:.1f} {y + 5}l10 10m0-10-10 10", "died")
    title = f"{one.size} × {width(one.size):,}, {parameters(one.size) / 1e9:.2f} B"
    yield text(WIDE - 16, y + 15, title, "name end")
