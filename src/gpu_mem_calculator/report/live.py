"""A report in pieces, for a page that shows it while its settings change.

The same words, tables and pictures as in the HTML report. Nothing in them has a style, an id or a
link of its own, so a page may show several beside each other and keep its address to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..core.calculator import Estimate
from ..core.serving_answers import Answers
from .html import key_rows, legend, page_of, remarks, setup, verdict
from .html_tables import (
    EstimatePage,
    breakdown_table,
    instants_table,
    ledger_details,
    numbers_list,
    stages_table,
)
from .instants import InstantColumn, KindSlice
from .patterns import TITLES, defs
from .picture import TITLE, Drawing, drawing, hits
from .serving_html import WIDTH, serving_parts

LOWEST, HIGHEST, ASPECT = 260, 420, 0.36  # of the plot, and its height for its width
LISTED = 12  # entries of a slice that are named
FRAME = 34  # what the figure around a map takes of the width: padding and border


def look(
    estimate: Estimate, found: Answers | None, *, width: int, pending: bool = False
) -> dict[str, Any]:
    """Every piece of HTML by name, and the picture's columns as data.

    The picture is `width` wide. With `pending` what only a replay knows is shown as on its way.
    Patterns are needed once on a page.
    """
    page = page_of(estimate)
    drawn = _drawn(page, width)
    parts = {
        "patterns": defs(),
        "setup": setup(estimate),
        "verdict": verdict(page, live=True, pending=pending),
        "picture": _picture(page, drawn),
        "legend": legend(page),
        "key": "" if drawn.named else f'<ul class="key">{"".join(key_rows(page))}</ul>',
        "instants": instants_table(page),
        "breakdown": breakdown_table(page),
        "stages": stages_table(page) if len(page.result.stages) > 1 else "",
        "numbers": numbers_list(page, pending=pending),
        "ledger": ledger_details(page),
        "remarks": remarks(page.result),
    }
    if found is not None:
        parts |= serving_parts(estimate, found, width=min(WIDTH, width - FRAME))
    return {"parts": parts, "columns": _columns(page.columns)}


def _drawn(page: EstimatePage, width: int) -> Drawing:
    height = min(HIGHEST, max(LOWEST, round(ASPECT * width)))
    limit = page.result.gpu_memory_bytes
    return drawing(page.columns, page.peak, limit, width=width, height=height, titled=False)


def _picture(page: EstimatePage, drawn: Drawing) -> str:
    """The step with a whole column to point at behind each stack."""
    size = f'width="{drawn.width}" height="{drawn.height:g}"'
    return (
        f'<svg class="step" {size} viewBox="0 0 {drawn.width} {drawn.height:g}" role="group" '
        f'aria-label="{TITLE}. {escape(drawn.words)}">'
        f"{''.join(hits(page.columns, drawn.place))}"
        f'<g aria-hidden="true">{"".join(drawn.lines)}</g></svg>'
    )


def _columns(columns: Sequence[InstantColumn]) -> list[dict[str, Any]]:
    """What lies behind the picture, for whoever points at it."""
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
    """The largest entries of a slice, and how many more there are."""
    listed: list[list[str | int]] = [[name, size] for name, size in part.entries[:LISTED]]
    more = part.entries[LISTED:]
    return listed + ([[f"{len(more)} more", sum(size for _, size in more)]] if more else [])
