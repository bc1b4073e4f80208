"""Plans in one line, made for an issue or a chat, and as data with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from ...estimates.fit_verdict import FITS, SHORT
from ...estimates.summary import short_card
from ...ledger.units import gib
from .amounts import card, card_bytes
from .figures import MILLI, interval
from .words import change_words, question_words, setup_words

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, Plans


def plans_verdict(plans: Plans) -> str:
    """Whether a set-up fits."""
    return FITS if any(one.fits_on_gpu for one in plans.plans) else SHORT


def plans_line(plans: Plans) -> str:
    """What was asked, the best set-up with what it takes and its time; or the smallest change with
    which one would fit.
    """
    asked = short_card(question_words(plans).partition(" (--")[0])
    if plans_verdict(plans) == FITS:
        best = next(one for one in plans.plans if one.fits_on_gpu)
        return f"{asked}: {', '.join(setup_words(best))}: {_figures(best)}"
    changes = [change_words(one.change) for one in plans.if_nothing_fits]
    return f"{asked}: no set-up fits{f'; it would with {changes[0]}' if changes else ''}"


def _figures(plan: Plan) -> str:
    has = card(plan.run.get("hardware") or {}).memory_bytes
    takes = f"{gib(card_bytes(plan))} of {gib(has)} GiB, fits"
    if plan.serving is not None:
        return f"{takes}, {interval(plan.step_seconds, MILLI)} ms per output token"
    return f"{takes}, {interval(plan.step_seconds)} s a step"


def plans_data(plans: Plans) -> dict[str, Any]:
    """Plans as data, with the verdict and the line."""
    found: dict[str, Any] = to_builtins(plans)
    return {"verdict": plans_verdict(plans), "summary": plans_line(plans), **found}
