"""An explanation as text: entry by entry, at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from ..estimates.calculator import Estimate
from ..estimates.explain.explain import LETTERS, ExplainedEntry, Explanation
from ..estimates.verdict_words import total_bytes
from ..ledger.ledger import CPU, GPU, NVME, RANK_0, UNIFIED
from .headline import headline
from .lines import BOLD, DIM, WARN, WIDTH, Line, line, size, wrap_lines
from .parts import KIND_TITLES, rest_words

JOINED = "\u00a0×\u00a0"  # no line break inside a product
PLACES = {
    GPU: "",
    CPU: ", in host RAM",
    RANK_0: ", in rank 0's host RAM",
    NVME: ", on the NVMe disk",
    UNIFIED: "",  # the entry's name says it
}


def explanation_lines(
    estimate: Estimate, explanation: Explanation, *, show_parts: bool
) -> Iterator[Line]:
    """The lines of an explanation; `show_parts` lists the parts of each entry."""
    yield from headline(estimate)
    if estimate.resolved.meant:
        yield from wrap_lines("means: ", ", ".join(estimate.resolved.meant))
    yield line()
    if explanation.num_stages > 1:
        yield line(f"pipeline stage {explanation.stage}, the busiest of {explanation.num_stages}")
    if explanation.letters:
        yield from wrap_lines("letters: ", "; ".join(_letters(explanation)))
    if explanation.token_formula:
        yield from _formula("KV cache of one token: ", explanation.token_formula)
    elif not (explanation.symbolic or estimate.served):
        yield line("note: this engine's formulas are shown as plain numbers", WARN)
    total = size(explanation.allocated_bytes + explanation.outside_torch_bytes)
    yield line()
    yield line(f"alive at the peak ({explanation.peak}): {total}", BOLD)
    yield from _rest(estimate)
    shown = {"show_parts": show_parts, "symbolic": explanation.symbolic}
    at_peak = [e for e in explanation.entries if e.bytes_at_peak and e.place == GPU]
    others = [e for e in explanation.entries if not (e.bytes_at_peak and e.place == GPU)]
    for entry in at_peak:
        yield from _entry(entry, at_peak=True, **shown)
    if others:
        yield line()
        yield line("at other instants, or elsewhere", BOLD)
        for entry in others:
            yield from _entry(entry, at_peak=False, **shown)


def _rest(estimate: Estimate) -> Iterator[Line]:
    """What torch's allocator needs beyond that; together it is the figure of the verdict."""
    result, card = estimate.result, total_bytes(estimate.result)
    margin = result.margin_bytes or 0
    rest = card - margin - result.allocated_bytes - result.outside_torch_bytes
    if rest > 0:
        text = f"torch's allocator needs {size(rest)} more: {rest_words(result)}"
        yield from wrap_lines("", f"{text}; {size(card)} in all, with a margin of {size(margin)}")


def _letters(explanation: Explanation) -> Iterator[str]:
    for name, value in explanation.letters.items():
        yield f"{LETTERS.get(name, '')} {name} = {value:,}".lstrip()


def _entry(
    entry: ExplainedEntry, *, at_peak: bool, show_parts: bool, symbolic: bool
) -> Iterator[Line]:
    """One entry; a formula with letters (`symbolic`) is repeated with their values."""
    yield line()
    copies = entry.copies_at_peak
    figure = size(entry.bytes_at_peak if at_peak else entry.bytes)
    if at_peak and copies > 1:
        figure = f"{copies} × {size(entry.bytes)} = {figure}"
    kind = KIND_TITLES.get(entry.kind, entry.kind)
    title = f"{entry.name} ({kind}{PLACES[entry.place]})"
    if len(title) + len(figure) + 2 <= WIDTH:
        yield [(title, BOLD), (figure.rjust(WIDTH - len(title)), "")]
    else:
        yield from wrap_lines("", title, BOLD)
        yield line(figure.rjust(WIDTH))
    yield from _formula("  bytes  ", entry.formula)
    if symbolic and entry.numbers not in (entry.formula, f"{entry.bytes:,}"):
        yield from _formula("         ", f"= {entry.numbers}", DIM)
    if entry.formula != f"{entry.bytes:,}":
        yield from wrap_lines("         ", f"= {entry.bytes:,}")
    if entry.words:
        yield from wrap_lines("  words  ", entry.words)
    yield from wrap_lines("  alive  ", _alive(entry))
    yield from wrap_lines("  source ", entry.source)
    if show_parts:
        for number, (name, num_bytes, formula) in enumerate(entry.parts):
            label = "  parts  " if number == 0 else "         "
            text = f"{formula} = {num_bytes:,}" if formula != f"{num_bytes:,}" else formula
            yield from wrap_lines(label, f"{name}: {text}")


def _formula(label: str, text: str, style: str = "") -> Iterator[Line]:
    """A formula, with line breaks between terms but not inside a product."""
    for row in wrap_lines(label, text.replace(" × ", JOINED), style):
        yield [(piece.replace(JOINED, " × "), span_style) for piece, span_style in row]


def _alive(entry: ExplainedEntry) -> str:
    """The instants at which an entry is alive, with the number of copies if several."""
    if entry.always:
        return "all the time"
    return "; ".join(
        title if copies == 1 else f"{title} × {copies}" for title, copies in entry.alive.items()
    )
