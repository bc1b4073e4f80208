"""The plans as an SVG scatter.

Each point is a button of its plan; `plans.js` opens it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...ledger.units import GIB
from ..backtest_picture import SHAPES
from ..html_tables import text
from ..svg import svg_text
from .amounts import card
from .figures import PlotAxis, plan_axes, plan_columns
from .front import NAMED
from .words import engine_words, setup_words

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, Plans

WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 38, 48


def scatter(plans: Plans) -> str:
    """The picture as SVG, its points as buttons."""
    across, up = plan_axes(plans.plans)
    front = {plans.plans[i].rank for i in plans.front}
    ordered = sorted(plans.plans, key=lambda one: (across.value(one), up.value(one)))
    named = list(dict.fromkeys(engine_words(one.run) for one in plans.plans))
    lines = [
        *_grid(across, up),
        *_limit(plans, across),
        *_front_line([one for one in ordered if one.rank in front], across, up),
        *(_point(one, False, named, across, up) for one in ordered if one.rank not in front),
        *(_point(one, True, named, across, up) for one in ordered if one.rank in front),
    ]
    words = f"{up.title} against {across.title} of {len(ordered)} plans"
    return (
        f'<svg class="front" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
        f'aria-label="{words}; arrow keys move between them">{"".join(lines)}</svg>'
        f"{_legend(named)}"
    )


def _x(axis: PlotAxis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: PlotAxis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _grid(across: PlotAxis, up: PlotAxis) -> Iterator[str]:
    for value in up.ticks():
        y = _y(up, value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield svg_text(LEFT - 8, f"{y + 4:.1f}", f"{value:,.6g}", kind="tick", anchor="end")
    for value in across.ticks():
        x = f"{_x(across, value):.1f}"
        yield f'<path class="grid" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield svg_text(x, HEIGHT - BOTTOM + 18, f"{value:,.6g}", kind="tick", anchor="middle")
    yield svg_text(LEFT, TOP - 22, up.title, kind="axis", anchor="start")
    yield svg_text(WIDTH - RIGHT, HEIGHT - 8, across.title, kind="axis", anchor="end")


def _limit(plans: Plans, across: PlotAxis) -> Iterator[str]:
    """The memory of the card, where it is in the picture."""
    if plans.plans[0].serving is not None:
        return
    has = card(plans.plans[0].run.get("hardware") or {}).memory_bytes / GIB
    if across.low < has < across.high:
        x = f"{_x(across, has):.1f}"
        yield f'<path class="limit" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield svg_text(x, TOP - 10, f"card {has:.1f}", kind="limit-label", anchor="end")


def _front_line(front: Sequence[Plan], across: PlotAxis, up: PlotAxis) -> Iterator[str]:
    points = [f"{_x(across, across.value(p)):.1f} {_y(up, up.value(p)):.1f}" for p in front]
    if len(points) > 1:
        yield f'<path class="line" d="M{"L".join(points)}"/>'


def _point(plan: Plan, on_front: bool, named: list[str], across: PlotAxis, up: PlotAxis) -> str:
    x, y = _x(across, across.value(plan)), _y(up, up.value(plan))
    number = named.index(engine_words(plan.run)) % len(SHAPES)
    says = f"plan {plan.rank}: {', '.join(setup_words(plan))}; {_figures(plan)}"
    first = plan.rank == 1
    return (
        f'<g class="point e-{number}{_front_class(plan, on_front)}" role="button" '
        f'data-plan="{plan.rank}" tabindex="{0 if first else -1}" '
        f'aria-pressed="{str(first).lower()}" aria-label="{text(says)}" '
        f'transform="translate({x:.1f} {y:.1f})"><title>{text(says)}</title>'
        f'<circle class="hit" r="11"/><path transform="scale(1.3)" d="{SHAPES[number]}"/>'
        f"{svg_text(0, -10, plan.rank, kind='rank', anchor='middle')}</g>"
    )


def _front_class(plan: Plan, on_front: bool) -> str:
    if not on_front:
        return ""
    return " on-front named" if plan.rank <= NAMED else " on-front"


def _figures(plan: Plan) -> str:
    return ", ".join(f"{one.head} {one.text(plan)}" for one in plan_columns([plan]))


def _legend(named: Sequence[str]) -> str:
    items = "".join(
        f'<li><svg class="mark e-{i % len(SHAPES)}" viewBox="-7 -7 14 14" aria-hidden="true">'
        f'<path d="{SHAPES[i % len(SHAPES)]}"/></svg>{text(name)}</li>'
        for i, name in enumerate(named)
    )
    return f'<ul class="legend">{items}<li class="soft">filled: on the Pareto front</li></ul>'
