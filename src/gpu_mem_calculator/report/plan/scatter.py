"""The picture of plans as SVG: each is a point and a button, and the Pareto front is a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...ledger.units import GIB
from ..backtest_picture import SHAPES
from ..html_tables import text
from ..svg import svg_text
from .amounts import card
from .figures import MILLI, PlotAxis, plan_axes, plan_columns
from .text import NAMED
from .words import engine_words, setup_words

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, Plans

WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 38, 48
DIGIT, DIGIT_HEIGHT, MARK = 7.0, 9.0, 7.0  # of a number and of half a point, in pixels
# Where the number of a point may stand: to the right, down, and which end of it is there.
PLACES = ((0, -14, "middle"), (0, 22, "middle"), (14, 4, "start"), (-14, 4, "end"))
Box = tuple[float, float, float, float]


class Label(NamedTuple):
    """The place of a point's number, and whether it is always shown."""

    across: int
    down: int
    anchor: str
    shown: bool


def scatter(plans: Plans) -> str:
    """The picture as SVG, its points as buttons."""
    across, up = plan_axes(plans.plans)
    words = f"{up.title} against {across.title} of {len(plans.plans)} plans"
    return (
        f'<svg class="front" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
        f'aria-label="{words}; arrow keys move between them">{"".join(scatter_lines(plans))}</svg>'
        f"{_legend(engines_of(plans))}"
    )


def engines_of(plans: Plans) -> list[str]:
    """The engines of plans, each of which has its mark."""
    return list(dict.fromkeys(engine_words(one.run) for one in plans.plans))


def scatter_lines(plans: Plans, *, still: bool = False) -> list[str]:
    """The lines of the picture; still: its points are no buttons."""
    across, up = axes = plan_axes(plans.plans)
    at = {one.rank: (_x(across, across.value(one)), _y(up, up.value(one))) for one in plans.plans}
    front = sorted(plans.plans[i].rank for i in plans.front)
    ordered = sorted(plans.plans, key=lambda one: (across.value(one), up.value(one)))
    labels = placed_labels({rank: at[rank] for rank in front})
    behind = [one for one in ordered if one.rank not in labels]
    before = [one for one in ordered if one.rank in labels]
    return [
        *_grid(across, up),
        *_limit(plans, across),
        *_front_line([at[one.rank] for one in before]),
        *(
            _point(one, labels.get(one.rank), engines_of(plans), axes, still=still)
            for one in (*behind, *before)
        ),
    ]


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


def _front_line(front: Sequence[tuple[float, float]]) -> Iterator[str]:
    points = [f"{x:.1f} {y:.1f}" for x, y in front]
    if len(points) > 1:
        yield f'<path class="line" d="M{"L".join(points)}"/>'


def placed_labels(points: Mapping[int, tuple[float, float]]) -> dict[int, Label]:
    """The place of each point's number, by rank: beside its point, on no other point or number.

    Where there is none, or the rank is not among the first, the number is shown when its plan is.
    """
    taken = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in points.values()]
    labels = {}
    for rank, (x, y) in points.items():
        labels[rank] = Label(*PLACES[0], shown=False)
        for place in PLACES if rank <= NAMED else ():
            box = _box(x, y, len(str(rank)), place)
            inside = box[0] > LEFT and box[2] < WIDTH - RIGHT
            if inside and not any(_overlap(box, other) for other in taken):
                labels[rank] = Label(*place, shown=True)
                taken.append(box)
                break
    return labels


def _box(x: float, y: float, digits: int, place: tuple[int, int, str]) -> Box:
    """Left, top, right and bottom of a number at a point."""
    across, down, anchor = place
    width = DIGIT * digits
    left = x + across - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, y + down - DIGIT_HEIGHT, left + width, y + down


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _point(
    plan: Plan,
    label: Label | None,
    named: list[str],
    axes: tuple[PlotAxis, PlotAxis],
    *,
    still: bool,
) -> str:
    """A plan as a button, or a point that is still; `label` is there for those on the front."""
    x, y = (place(axis, axis.value(plan)) for place, axis in zip((_x, _y), axes, strict=True))
    number = named.index(engine_words(plan.run)) % len(SHAPES)
    shown = ", ".join(f"{one.head} {one.text(plan)}" for one in plan_columns([plan]))
    waits = "" if plan.replayed else ", not replayed yet"
    says = f"plan {plan.rank}: {', '.join(setup_words(plan))}; {shown}{waits}"
    first = plan.rank == 1
    across, down, anchor, is_shown = label or Label(*PLACES[0], shown=False)
    rank = svg_text(across, down, plan.rank, kind="rank", anchor=anchor)
    button = (
        f'role="button" data-plan="{plan.rank}" tabindex="{0 if first else -1}" '
        f'aria-pressed="{str(first).lower()}" '
    )
    return (
        f'<g class="point e-{number}{_kind(plan, label)}" {"" if still else button}'
        f'transform="translate({x:.1f} {y:.1f})"><title>{text(says)}</title>'
        f'{"" if still else _range(plan, (x, y), axes)}<circle class="hit" r="11"/>'
        f'<path transform="scale(1.3)" d="{SHAPES[number]}"/>'
        f"{rank if is_shown or not still else ''}</g>"
    )


def _kind(plan: Plan, label: Label | None) -> str:
    """Further classes of a point."""
    on_front = "" if label is None else " on-front named" if label.shown else " on-front"
    return on_front if plan.replayed else f"{on_front} waiting"


def _range(plan: Plan, at: tuple[float, float], axes: tuple[PlotAxis, PlotAxis]) -> str:
    """The interval of a plan's seconds, as far as it is in the picture."""
    (x, y), (across, up) = at, axes
    step = plan.step_seconds
    if plan.serving is None:
        ends = (_y(up, min(max(s, up.low), up.high)) - y for s in (step.low, step.high))
        return '<path class="range" d="M0 {:.1f}V{:.1f}"/>'.format(*ends)
    scaled = (min(max(MILLI * s, across.low), across.high) for s in (step.low, step.high))
    return '<path class="range" d="M{:.1f} 0H{:.1f}"/>'.format(*(_x(across, s) - x for s in scaled))


def _legend(named: Sequence[str]) -> str:
    items = "".join(
        f'<li><svg class="mark e-{i % len(SHAPES)}" viewBox="-7 -7 14 14" aria-hidden="true">'
        f'<path d="{SHAPES[i % len(SHAPES)]}"/></svg>{text(name)}</li>'
        for i, name in enumerate(named)
    )
    return f'<ul class="legend">{items}<li class="soft">filled: on the Pareto front</li></ul>'
