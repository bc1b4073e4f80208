"""Plans as one HTML file: the front is clicked, a set-up opens, two are compared.

No network: styles and the script are in it, and its policy allows that script alone.
"""

from __future__ import annotations

import base64
import hashlib
from string import Template
from typing import TYPE_CHECKING

from ...ledger.units import GIB
from ..html import asset
from ..html_tables import table, text
from .figures import plan_columns
from .panel import panel, row
from .question_words import question_words
from .scatter import scatter
from .text import space_words
from .words import change_words, setups_apart

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plans


def plan_page(plans: Plans) -> str:
    """The page."""
    from ... import __version__

    script = asset("plans.js").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = text(question_words(plans))
    return Template(asset("plans.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=title,
        css="\n".join(asset(name) for name in ("tokens.css", "page.css", "plans.css")),
        body=plan_body(plans),
        script=script,
        version=__version__,
    )


def plan_body(plans: Plans) -> str:
    """The plans: the verdict, the front beside every plan, of which the first is shown, a table."""
    if not plans.plans:
        return f'<div class="plans">{_verdict(plans)}</div>'
    panels = "".join(panel(one, shown=i == 0) for i, one in enumerate(plans.plans))
    return (
        f'<div class="plans">{_verdict(plans)}<div class="choose">'
        f'<figure aria-label="The plans">{scatter(plans)}<p class="soft" role="status" data-says>'
        f"Click a point or a number of the table to open its plan.</p></figure>"
        f'<div class="panels">{panels}</div></div>{_table(plans)}</div>'
    )


def _verdict(plans: Plans) -> str:
    fits = [one for one in plans.plans if one.fits_on_gpu]
    if fits:
        return f'<p class="soft">{text(space_words(plans))}.</p>{_limits(plans)}'
    changes = "".join(
        f"<li>{text(change_words(one.change))}: saves {one.saves_bytes / GIB:.1f} GiB per GPU</li>"
        for one in plans.if_nothing_fits
    )
    listed = (
        f'<p>It would fit with one of:</p><ul class="remarks">{changes}</ul>' if changes else ""
    )
    return (
        f'<div class="verdict fails"><p class="says">No set-up fits</p>'
        f'<p class="small">{text(space_words(plans))}.</p>{listed}</div>'
    )


def _limits(plans: Plans) -> str:
    """What the search and its seconds leave out."""
    listed = "".join(f"<li>{text(one)}</li>" for one in plans.limits)
    return f'<ul class="remarks small">{listed}</ul>' if listed else ""


def _table(plans: Plans) -> str:
    """The plans of the question's top, and those of the front."""
    words = setups_apart(plans.plans)
    columns = plan_columns(plans.plans)
    heads = ["#no.", "set-up", *(f"#{one.head}" for one in columns)]
    said = zip(plans.plans, map(", ".join, words), strict=True)
    rows = [row(one, text, columns) for one, text in said]
    return table("Plans, best first", heads, rows, kind="ranked")
