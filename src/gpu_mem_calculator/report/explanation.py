"""An explanation as text: entry by entry, at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.calculator import Estimate
from ..core.explain import LETTERS, ExplainedEntry, Explanation
from .headline import card_bytes, headline
from .lines import BOLD, DIM, WARN, WIDTH, Line, line, size, wrapped
from .parts import KIND_TITLES, rest_words

JOINED = "\u00a0×\u00a0"  # a product that a line does not end in
PLACES = {"gpu": "", "cpu": ", in host RAM", "nvme": ", on the NVMe disk"}


def explanation_lines(
    estimate: Estimate, found: Explanation, *, show_parts: bool
) -> Iterator[Line]:
    """The whole explanation."""
    yield from headline(estimate)
    yield line()
    if found.num_stages > 1:
        yield line(f"pipeline stage {found.stage}, the busiest of {found.num_stages}")
    if found.letters:
        yield from wrapped("letters: ", "; ".join(_letters(found)))
    if not found.symbolic:
        yield line("note: this engine's formulas are shown as plain numbers", WARN)
    total = size(found.allocated_bytes + found.outside_torch_bytes)
    yield line()
    yield line(f"alive at the peak ({found.peak}): {total}", BOLD)
    yield from _rest(estimate)
    here = [e for e in found.entries if e.bytes_at_peak and e.place == "gpu"]
    others = [e for e in found.entries if not (e.bytes_at_peak and e.place == "gpu")]
    for entry in here:
        yield from _entry(entry, at_peak=True, show_parts=show_parts)
    if others:
        yield line()
        yield line("at other instants, or elsewhere", BOLD)
        for entry in others:
            yield from _entry(entry, at_peak=False, show_parts=show_parts)


def _rest(estimate: Estimate) -> Iterator[Line]:
    """What the card must have beyond that, so that the verdict's figure is there, too."""
    result, card = estimate.result, card_bytes(estimate)
    rest = card - result.allocated_bytes - result.outside_torch_bytes
    if rest > 0:
        text = f"torch's allocator needs {size(rest)} more: {rest_words(result)}"
        yield from wrapped("", f"{text}; {size(card)} in all")


def _letters(found: Explanation) -> Iterator[str]:
    for name, value in found.letters.items():
        yield f"{LETTERS.get(name, '')} {name} = {value:,}".lstrip()


def _entry(entry: ExplainedEntry, *, at_peak: bool, show_parts: bool) -> Iterator[Line]:
    yield line()
    copies = entry.copies_at_peak
    figure = size(entry.bytes_at_peak if at_peak else entry.bytes)
    if at_peak and copies > 1:
        figure = f"{copies} × {size(entry.bytes)} = {figure}"
    kind = KIND_TITLES.get(entry.kind, entry.kind)
    title = f"{entry.name} ({kind}{PLACES.get(entry.place, '')})"
    if len(title) + len(figure) + 2 <= WIDTH:
        yield [(title, BOLD), (figure.rjust(WIDTH - len(title)), "")]
    else:
        yield from wrapped("", title, BOLD)
        yield line(figure.rjust(WIDTH))
    yield from _formula("  bytes  ", entry.formula)
    if entry.numbers not in (entry.formula, f"{entry.bytes:,}"):
        yield from _formula("         ", f"= {entry.numbers}", DIM)
    if entry.formula != f"{entry.bytes:,}":
        yield from wrapped("         ", f"= {entry.bytes:,}")
    yield from wrapped("  alive  ", _alive(entry))
    yield from wrapped("  source ", entry.source)
    if show_parts:
        for number, (name, num_bytes, formula) in enumerate(entry.parts):
            label = "  parts  " if number == 0 else "         "
            yield from wrapped(label, f"{name}: {formula} = {num_bytes:,}")


def _formula(label: str, text: str, style: str = "") -> Iterator[Line]:
    """A formula, folded between its terms and not inside a product."""
    for row in wrapped(label, text.replace(" × ", JOINED), style):
        yield [(piece.replace(JOINED, " × "), how) for piece, how in row]


def _alive(entry: ExplainedEntry) -> str:
    """When, and how often where that is more than once."""
    if entry.always:
        return "all the time"
    return "; ".join(
        title if copies == 1 else f"{title} × {copies}" for title, copies in entry.alive.items()
    )
