"""The parts of a report, for a page that updates them while its settings change.

They have the same words, tables and pictures as the HTML report, but no styles, ids or links, so a
page can show several reports at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..advice.serving.answers import Answers
from ..estimates.calculator import Estimate
from .html import estimate_page, key_rows, legend, remarks, setup, verdict
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
from .picture import TITLE, Drawing, drawing, hit_areas
from .serving.html import WIDTH, serving_parts

LOWEST, HIGHEST, ASPECT = 260, 420, 0.36  # bounds of the plot's height; height divided by width
LISTED = 12  # entries of a slice that are listed
FRAME = 34  # pixels of padding and border around a map


def look(
    estimate: Estimate, answers: Answers | None, *, width: int, pending: bool = False
) -> dict[str, Any]:
    """The parts of the report as HTML by name, and the picture's columns as data.

    - answers: the answers about a server, if it is one
    - width: of the picture, in pixels
    - pending: figures of the replay are shown as still being computed

    Patterns are needed once on a page.
    """
    page = estimate_page(estimate)
    plot = _drawing(page, width)
    parts = {
        "patterns": defs(),
        "setup": setup(estimate),
        "verdict": verdict(page, live=True, pending=pending),
        "picture": _picture(page, plot),
        "legend": legend(page),
        "key": "" if plot.named else f'<ul class="key">{"".join(key_rows(page))}</ul>',
        "instants": instants_table(page),
        "breakdown": breakdown_table(page),
        "stages": stages_table(page) if len(page.result.stages) > 1 else "",
        "phases": phases_table(page) if page.result.phases else "",
        "numbers": numbers_list(page, pending=pending),
        "ledger": ledger_details(page),
        "remarks": remarks(page.result),
    }
    if answers is not None:
        parts |= serving_parts(estimate, answers, width=min(WIDTH, width - FRAME))
    return {"parts": parts, "columns": _columns(page.columns)}


def _drawing(page: EstimatePage, width: int) -> Drawing:
    height = min(HIGHEST, max(LOWEST, round(ASPECT * width)))
    limit = page.result.gpu_memory_bytes
    return drawing(page.columns, page.peak, limit, width=width, height=height, titled=False)


def _picture(page: EstimatePage, plot: Drawing) -> str:
    """The picture of the step, with a hit area over the full height of each column."""
    size = f'width="{plot.width}" height="{plot.height:g}"'
    return (
        f'<svg class="step" {size} viewBox="0 0 {plot.width} {plot.height:g}" role="group" '
        f'aria-label="{TITLE}. {escape(plot.words)}">'
        f"{''.join(hit_areas(page.columns, plot.place))}"
        f'<g aria-hidden="true">{"".join(plot.lines)}</g></svg>'
    )


def _columns(columns: Sequence[InstantColumn]) -> list[dict[str, Any]]:
    """The picture's columns as data, for its tooltips."""
    return [
        {
            "title": one.title,
            "phase": one.phase,
            "bytes": one.bytes,
            "slices": [_slice(part) for part in one.slices if part.bytes],
        }
        for one in columns
    ]


def _slice(part: KindSlice) -> dict[str, Any]:
    named = {"kind": part.kind, "title": TITLES[part.kind], "bytes": part.bytes}
    return named | {"entries": entries_of(part)}


def entries_of(part: KindSlice) -> list[list[str | int]]:
    """[name, bytes] of the largest entries of a slice, and one row for the rest."""
    listed: list[list[str | int]] = [[name, size] for name, size in part.entries[:LISTED]]
    more = part.entries[LISTED:]
    return listed + ([[f"{len(more)} more", sum(size for _, size in more)]] if more else [])
