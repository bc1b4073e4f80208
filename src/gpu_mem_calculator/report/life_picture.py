"""The phases of a run's life as SVG: a bar for the GPU's highest memory in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from ..estimates.node import FIRST, STEADY, TITLES, PhaseMemory
from ..ledger.units import GIB
from .svg import CHARACTER, PlotFrame, svg_text

HEAD = "the run’s life: highest memory of its tensors in each phase, GiB"
SHORT_HEAD = "each phase of the run, GiB"
TALL, ROW = 30, 17  # pixels of the highest bar; of a row, where the picture is narrow
CELL = 84  # pixels of a phase at least; where there are fewer, each phase has a row
NAME, FIGURE = 122, 46  # pixels of a name and of a figure in a row
LETTER = 11  # pixels of the type


def life_height(phases: Sequence[PhaseMemory], width: float) -> int:
    """Pixels that the strip takes below a plot; 0 where there is nothing to show."""
    phases = _listed(phases)
    if not phases:
        return 0
    return 40 + TALL + 30 if width / len(phases) >= CELL else 36 + ROW * len(phases)


def life(phases: Sequence[PhaseMemory], place: PlotFrame, top: float) -> Iterator[str]:
    """The strip, from `top` on, as wide as a plot. What the run need not do is in brackets."""
    phases = _listed(phases)
    if not phases:
        return
    wide = place.width / len(phases) >= CELL
    words = HEAD if len(HEAD) * 12 * CHARACTER < place.width else SHORT_HEAD
    yield svg_text(f"{place.left:g}", f"{top + 20:g}", words, kind="life-head")
    most = max(1, max(one.gpu_bytes for one in phases))
    yield from (_cells if wide else _rows)(phases, place, top, most)


def _listed(phases: Sequence[PhaseMemory]) -> Sequence[PhaseMemory]:
    """The phases, with a place for the first step, which only a replay knows."""
    names = [one.name for one in phases]
    if STEADY not in names or FIRST in names:
        return phases
    at = names.index(STEADY)
    unknown = PhaseMemory(name=FIRST, gpu_bytes=0, host_bytes=0, process_bytes=0)
    return [*phases[:at], unknown, *phases[at:]]


def _figure(one: PhaseMemory) -> str:
    return "…" if one.name == FIRST and not one.gpu_bytes else f"{one.gpu_bytes / GIB:,.2f}"


def _title(one: PhaseMemory) -> str:
    return TITLES[one.name] if one.asked else f"({TITLES[one.name]})"


def _classes(one: PhaseMemory, most: int) -> str:
    """The step above is one of the phases; the highest is bold."""
    return f"life{' at-peak' * (one.gpu_bytes == most)}{' drawn' * (one.name == STEADY)}"


def _cells(phases: Sequence[PhaseMemory], place: PlotFrame, top: float, most: int) -> Iterator[str]:
    """A bar for each phase, in the order of the run."""
    step, bottom = place.width / len(phases), top + 40 + TALL
    for number, one in enumerate(phases):
        x, kind = place.left + number * step, _classes(one, most)
        height = TALL * one.gpu_bytes / most
        yield (
            f'<rect class="bar-{kind}" x="{x + 2:.2f}" y="{bottom - height:.2f}" '
            f'width="{step - 4:.2f}" height="{max(height, 1):.2f}"/>'
        )
        figure = _figure(one)
        yield svg_text(f"{x + 4:.2f}", f"{bottom - height - 4:.2f}", figure, kind=kind)
        lines = wrap(_title(one), max(6, int((step - 6) / (LETTER * CHARACTER))), max_lines=2)
        for row, line in enumerate(lines):
            yield svg_text(f"{x + 4:.2f}", f"{bottom + 14 + 13 * row:.2f}", line, kind=kind)


def _rows(phases: Sequence[PhaseMemory], place: PlotFrame, top: float, most: int) -> Iterator[str]:
    """A row for each phase, one below the other."""
    left, room = place.left - 34, place.width + 34 - NAME - FIGURE
    for number, one in enumerate(phases):
        y, kind = top + 30 + ROW * number, _classes(one, most)
        width = room * one.gpu_bytes / most
        yield svg_text(f"{left:.2f}", f"{y + 11:.2f}", _title(one), kind=kind)
        yield (
            f'<rect class="bar-{kind}" x="{left + NAME:.2f}" y="{y + 1:.2f}" '
            f'width="{max(width, 1):.2f}" height="{ROW - 4}"/>'
        )
        figure = _figure(one)
        yield svg_text(f"{left + NAME + width + 4:.2f}", f"{y + 11:.2f}", figure, kind=kind)
