"""The parts of a report, for a page that updates them while its settings change.

They have the same words, tables and pictures as the HTML report, but no styles, ids or links, so a
page can show several reports at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from msgspec.structs import replace

from ..advice.serving.answers import Answers
from ..estimates.calculator import Estimate
from .course import MOST, course_columns
from .html import estimate_page, highest, key_rows, legend, remarks, setup, verdict
from .html_tables import (
    EstimatePage,
    breakdown_table,
    instants_table,
    ledger_details,
    numbers_list,
    phases_table,
    stages_table,
)
from .instants import InstantColumn, KindSlice
from .patterns import TITLES, defs
from .picture import TITLE, Drawing, drawing, in_course
from .serving.html import WIDTH, pace, serving_parts

LOWEST, HIGHEST, ASPECT = 260, 420, 0.36  # bounds of the plot's height; height divided by width
LISTED = 12  # entries of a slice that are listed
COLUMN, FEWEST = 4, 48  # pixels of a column at least, and how many there may be in any case
FRAME = 34  # pixels of padding and border around a map


def look(
    estimate: Estimate,
    answers: Answers | None,
    *,
    width: int,
    pending: bool = False,
    window: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The parts of the report as HTML by name, and the picture's columns as data.

    - answers: the answers about a server, if it is one
    - width: of the picture, in pixels
    - pending: figures of the replay are shown as still being computed
    - window: the first and the last stretch of the step that the picture shows; None: all

    Patterns are needed once on a page. Before the replay the columns of a step have only kinds, and
    there is no table of them: they are drawn while a slider moves.
    """
    most = max(FEWEST, min(MOST, width // COLUMN))
    page = shown = estimate_page(estimate, most=most, named=not pending)
    if window and (columns := course_columns(estimate, window=window, most=most, named=True)):
        shown = replace(page, columns=columns, peak=highest(columns))
    plot = _drawing(shown, width, whole=0 if shown is page else page.columns[page.peak].bytes)
    parts = {
        "patterns": defs(),
        "setup": setup(estimate),
        "verdict": verdict(page, live=True, pending=pending),
        "picture": _picture(plot),
        "legend": legend(page),
        "key": "" if plot.named or in_course(page.columns) else _key(page),
        "breakdown": breakdown_table(page),
        "stages": stages_table(page) if len(page.result.stages) > 1 else "",
        "phases": phases_table(page) if page.result.phases else "",
        "numbers": numbers_list(page, pending=pending),
        "ledger": ledger_details(page),
        "remarks": remarks(estimate, pending=pending),
    }
    if not (pending and in_course(page.columns)):
        parts["instants"] = instants_table(page)
    if answers is not None:
        parts |= serving_parts(estimate, answers, width=min(WIDTH, width - FRAME))
        parts["pace"] = pace(answers.speed) if answers.speed and "speed" in parts else ""
    return {
        "parts": parts,
        "columns": _columns(page.columns),
        "peak": page.peak,
        "titles": TITLES,
        "zoom": None if shown is page else {"columns": _columns(shown.columns), "peak": shown.peak},
        "place": plot.place,
        "stretches": page.columns[-1].last + 1,
        "instants": [one.title for one in estimate.ledger.instants if one.present],
    }


def _key(page: EstimatePage) -> str:
    return f'<ul class="key">{"".join(key_rows(page))}</ul>'


def _drawing(page: EstimatePage, width: int, whole: int) -> Drawing:
    height = min(HIGHEST, max(LOWEST, round(ASPECT * width)))
    limit = page.result.gpu_memory_bytes
    phases = page.result.phases
    return drawing(
        page.columns,
        page.peak,
        limit,
        titled=False,
        width=width,
        height=height,
        whole=whole,
        phases=phases,
    )


def _picture(plot: Drawing) -> str:
    """The picture of the step."""
    size = f'width="{plot.width}" height="{plot.height:g}"'
    return (
        f'<svg class="step" {size} viewBox="0 0 {plot.width} {plot.height:g}" role="group" '
        f'aria-label="{TITLE}. {escape(plot.words)}">'
        f'<g aria-hidden="true">{"".join(plot.lines)}</g></svg>'
    )


def _columns(columns: Sequence[InstantColumn]) -> list[dict[str, Any]]:
    """The picture's columns as data, for its tooltips."""
    return [
        {
            "title": one.title,
            "phase": one.phase,
            "bytes": one.bytes,
            "first": one.first,
            "last": one.last,
            "slices": [_slice(part) for part in one.slices if part.bytes],
        }
        for one in columns
    ]


def _slice(part: KindSlice) -> dict[str, Any]:
    return {"kind": part.kind, "bytes": part.bytes, "entries": entries_of(part)}


def entries_of(part: KindSlice) -> list[list[str | int]]:
    """[name, bytes] of the largest entries of a slice, and one row for the rest."""
    listed: list[list[str | int]] = [[name, size] for name, size in part.entries[:LISTED] if name]
    more = part.entries[LISTED:]
    return listed + ([[f"{len(more)} more", sum(size for _, size in more)]] if more else [])
