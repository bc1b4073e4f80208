"""Plans as one HTML file: the front is clicked, a set-up opens, two are compared.

No network: styles and the script are in it, and its policy allows that script alone. A point of the
scatter is the button of its plan; `plans.js` opens the plan's panel, with its figures, memory by
stage, the parts of its time, and its run file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from string import Template
from typing import TYPE_CHECKING

from ...ledger.units import GIB
from ..backtest_picture import SHAPES
from ..html import asset
from ..html_tables import num_cells, remarks_list, size, table, text
from ..svg import svg_text
from .amounts import (
    PARTS,
    card,
    card_bytes,
    difference_text,
    rate_text,
    seconds_text,
    time_parts,
    training_words,
)
from .figures import MILLI, PlanColumn, PlotAxis, interval, plan_axes, plan_columns
from .text import NAMED, space_words
from .words import change_words, engine_words, question_words, setup_words, setups_apart

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, Plans

SHOWN_STAGES = 8  # pipeline stages in full; of more, the first, the last and the largest
WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 38, 48


def panel(plan: Plan, *, shown: bool) -> str:
    """A plan as an article, which `plans.js` shows, hides and compares."""
    name = f"plan-{plan.rank}"
    hidden = "" if shown else " hidden"
    return (
        f'<article class="plan" data-rank="{plan.rank}" aria-labelledby="{name}"{hidden}>'
        f'<header><h2 id="{name}">Plan {plan.rank}</h2>'
        f'<button type="button" class="button" data-keep="{plan.rank}">Compare</button></header>'
        f'<p class="words">{_words(plan)}</p>{_figure_table(plan)}{_time(plan)}{_stages(plan)}'
        f"{_why(plan)}{_knobs(plan)}{_run_file(plan)}</article>"
    )


def _words(plan: Plan) -> str:
    first, *others = setup_words(plan)
    marked = "".join(f' <span data-compare="{text(w)}">{text(w)}</span>' for w in others)
    return f'<strong data-compare="{text(first)}">{text(first)}</strong>{marked}'


def figures(plan: Plan) -> Iterator[tuple[str, str]]:
    """The figures of a plan: name and text."""
    has = card(plan.run.get("hardware") or {}).memory_bytes
    spare = f"{abs(plan.headroom_bytes) / GIB:.1f} GiB"
    yield (
        "verdict",
        f"fits, {spare} to spare" if plan.fits_on_gpu else f"does not fit, {spare} short",
    )
    yield "needs", f"{card_bytes(plan) / GIB:.1f} of {has / GIB:.1f} GiB per GPU"
    if plan.serving is None:
        yield "step", f"{interval(plan.step_seconds)} s"
        yield "MFU", f"{100 * plan.mfu:.1f} %"
    else:
        yield "per output token", f"{interval(plan.step_seconds, MILLI)} ms"
        yield "first token", f"{interval(plan.serving.first_token_seconds)} s"
        yield "users", f"{plan.serving.users:,} (memory for {plan.serving.most_users:,})"
        yield "replicas", f"{plan.serving.replicas:,} on {plan.serving.gpus:,} GPUs"
    yield "tokens/s", rate_text(plan.tokens_per_second)
    training = list(training_words(plan))
    if training:
        yield "all tokens", ", ".join(training)


def _figure_table(plan: Plan) -> str:
    rows = "".join(
        f'<div><dt>{name}</dt><dd data-compare="{text(words)}">{text(words)}</dd></div>'
        for name, words in figures(plan)
    )
    return f'<dl class="figures">{rows}</dl>'


def _time(plan: Plan) -> str:
    """A bar of the parts of a step, and their seconds."""
    parts = list(time_parts(plan))
    whole = sum(seconds for *_, seconds in parts)
    if not whole:
        return ""
    rects, items, start = [], [], 0.0
    scale, unit = (MILLI, "ms") if plan.serving else (1.0, "s")
    for key, title, seconds in parts:
        share = 100 * seconds / whole
        rects.append(
            f'<rect class="{_fill(key)}" x="{start:.2f}%" width="{share:.2f}%" height="16"/>'
        )
        shown = f"{seconds_text(scale * seconds)} {unit}, {share:.0f} %"
        items.append(
            f'<li><svg class="swatch" aria-hidden="true"><rect class="{_fill(key)}" width="16" '
            f'height="16"/></svg>{text(title)} <span data-compare="{shown}">{shown}</span></li>'
        )
        start += share
    name = "Time per output token" if plan.serving else "Time of a step"
    return (
        f'<h3>{name}</h3><svg class="bar" aria-hidden="true">{"".join(rects)}</svg>'
        f'<ul class="legend">{"".join(items)}</ul>'
    )


def _fill(key: str) -> str:
    """The class that colours a part; the same part has the same in every plan."""
    return f"t-{list(PARTS).index(key) if key in PARTS else len(PARTS)}"


def _stages(plan: Plan) -> str:
    """The memory of each pipeline stage."""
    if len(plan.stages) < 2:
        return ""
    has = card(plan.run.get("hardware") or {}).memory_bytes
    most = max(plan.stages, key=lambda one: one.allocated_bytes)
    listed = plan.stages
    if len(listed) > SHOWN_STAGES:
        listed = [s for s in listed if s in (listed[0], listed[1], most, listed[-2], listed[-1])]
    rows = [
        f'<tr><th scope="row">{one.stage}</th>{num_cells(one.layers, size(one.allocated_bytes))}'
        f'<td class="bar-cell"><svg class="bar" aria-hidden="true"><rect class="t-0" '
        f'width="{min(100, 100 * one.allocated_bytes / has):.1f}%" height="14"/></svg></td></tr>'
        for one in listed
    ]
    caption = f"GiB of tensors at the peak; {len(plan.stages)} stages"
    return f"<h3>Memory by stage</h3>{table(caption, ['stage', '#layers', '#GiB', '|'], rows)}"


def _why(plan: Plan) -> str:
    return f"<h3>Why</h3>{remarks_list(plan.why)}" if plan.why else ""


def _knobs(plan: Plan) -> str:
    """What each change costs or saves."""
    rows = []
    scale, unit = (MILLI, "ms") if plan.serving else (1.0, "seconds")
    for one in plan.knobs:
        fits = "" if one.fits_on_gpu else ' <span class="warn">does not fit</span>'
        time = difference_text(scale * one.step_seconds, scale * plan.step_seconds.estimate)
        cells = num_cells(f"{one.needs_bytes / GIB:+.1f}", time)
        rows.append(f'<tr><th scope="row">{text(change_words(one.change))}{fits}</th>{cells}</tr>')
    heads = ["change", "#GiB", f"#{unit}"]
    return f"<h3>One change</h3>{table('from this plan', heads, rows)}" if rows else ""


def _run_file(plan: Plan) -> str:
    run = text(json.dumps(plan.run, indent=2, ensure_ascii=False))
    return (
        f"<details><summary>Run file</summary><p>Save it as <code>run.json</code>, then "
        f"<code>gpu-mem-calc calculate run.json</code>.</p>"
        f'<button type="button" class="button" data-copy>Copy</button>'
        f'<pre class="all" tabindex="0"><code>{run}</code></pre></details>'
    )


def row(plan: Plan, words: str, columns: Sequence[PlanColumn]) -> str:
    """A row of the table of plans, whose number opens the plan."""
    label = f"plan {plan.rank}, {engine_words(plan.run)}"
    return (
        f'<tr><td class="num"><button type="button" class="rank" data-plan="{plan.rank}" '
        f'aria-pressed="{str(plan.rank == 1).lower()}" aria-label="{text(label)}">{plan.rank}'
        f'</button></td><th scope="row">{text(words)}</th>'
        f"{num_cells(*(column.text(plan) for column in columns))}</tr>"
    )


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
    across, up = plan_axes(plans.plans)
    front = {plans.plans[i].rank for i in plans.front}
    ordered = sorted(plans.plans, key=lambda one: (across.value(one), up.value(one)))
    named = engines_of(plans)
    return [
        *_grid(across, up),
        *_limit(plans, across),
        *_front_line([one for one in ordered if one.rank in front], across, up),
        *(_point(one, False, named, across, up, still) for one in ordered if one.rank not in front),
        *(_point(one, True, named, across, up, still) for one in ordered if one.rank in front),
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


def _front_line(front: Sequence[Plan], across: PlotAxis, up: PlotAxis) -> Iterator[str]:
    points = [f"{_x(across, across.value(p)):.1f} {_y(up, up.value(p)):.1f}" for p in front]
    if len(points) > 1:
        yield f'<path class="line" d="M{"L".join(points)}"/>'


def _point(
    plan: Plan, on_front: bool, named: list[str], across: PlotAxis, up: PlotAxis, still: bool
) -> str:
    x, y = _x(across, across.value(plan)), _y(up, up.value(plan))
    number = named.index(engine_words(plan.run)) % len(SHAPES)
    shown = ", ".join(f"{one.head} {one.text(plan)}" for one in plan_columns([plan]))
    says = text(f"plan {plan.rank}: {', '.join(setup_words(plan))}; {shown}")
    first = plan.rank == 1
    button = (
        ""
        if still
        else (
            f'role="button" data-plan="{plan.rank}" tabindex="{0 if first else -1}" '
            f'aria-pressed="{str(first).lower()}" aria-label="{says}" '
        )
    )
    front = _front_class(plan, on_front)
    rank = svg_text(0, -10, plan.rank, kind="rank", anchor="middle")
    return (
        f'<g class="point e-{number}{front}" {button}'
        f'transform="translate({x:.1f} {y:.1f})"><title>{says}</title>'
        f'<circle class="hit" r="11"/><path transform="scale(1.3)" d="{SHAPES[number]}"/>'
        f"{'' if still and 'named' not in front else rank}</g>"
    )


def _front_class(plan: Plan, on_front: bool) -> str:
    if not on_front:
        return ""
    return " on-front named" if plan.rank <= NAMED else " on-front"


def _legend(named: Sequence[str]) -> str:
    items = "".join(
        f'<li><svg class="mark e-{i % len(SHAPES)}" viewBox="-7 -7 14 14" aria-hidden="true">'
        f'<path d="{SHAPES[i % len(SHAPES)]}"/></svg>{text(name)}</li>'
        for i, name in enumerate(named)
    )
    return f'<ul class="legend">{items}<li class="soft">filled: on the Pareto front</li></ul>'


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
        limits = remarks_list(plans.limits, "remarks small")  # of the search and its seconds
        return f'<p class="soft">{text(space_words(plans))}.</p>{limits}'
    changes = remarks_list(
        f"{change_words(one.change)}: saves {one.saves_bytes / GIB:.1f} GiB per GPU"
        for one in plans.if_nothing_fits
    )
    listed = f"<p>It would fit with one of:</p>{changes}" if changes else ""
    return (
        f'<div class="verdict fails"><p class="says">No set-up fits</p>'
        f'<p class="small">{text(space_words(plans))}.</p>{listed}</div>'
    )


def _table(plans: Plans) -> str:
    """The plans of the question's top, and those of the front."""
    columns = plan_columns(plans.plans)
    heads = ["#no.", "set-up", *(f"#{one.head}" for one in columns)]
    set_ups = zip(plans.plans, setups_apart(plans.plans), strict=True)
    rows = [row(one, ", ".join(words), columns) for one, words in set_ups]
    return table("Plans, best first", heads, rows, kind="ranked")
