"""Plans as one HTML file: the front is clicked, a set-up opens, two are compared.

No network: styles and the script are in it, and its policy allows that script alone. A point of the
scatter is the button of its plan; `plans.js` opens the plan's panel, with its figures, memory by
stage, the parts of its time, and its run file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from string import Template
from typing import TYPE_CHECKING

from msgspec import structs

from ...estimates.node import USUAL
from ...ledger.units import GIB, gib
from ..html import asset
from ..html_tables import num_cells, remarks_list, size, table, text
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
from .figures import MILLI, PlanColumn, interval, plan_columns
from .scatter import scatter
from .text import space_words
from .words import (
    GROUPS,
    by_idea,
    change_words,
    engine_words,
    question_words,
    setup_words,
    setups_apart,
)

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, Plans

SHOWN_STAGES = 8  # pipeline stages in full; of more, the first, the last and the largest
OPTION = re.compile(r"try --fix (\S+)")  # in sentences of the planner


def panel(plan: Plan, *, shown: bool) -> str:
    """A plan as an article, which `plans.js` shows, hides and compares."""
    name = f"plan-{plan.rank}"
    hidden = "" if shown else " hidden"
    return (
        f'<article class="plan" data-rank="{plan.rank}" data-key="{key(plan)}" '
        f'aria-labelledby="{name}"{hidden}>'
        f'<header><h2 id="{name}">Plan {plan.rank}</h2>'
        f'<button type="button" class="button" data-keep="{plan.rank}">Compare</button></header>'
        f'<p class="words">{_words(plan)}</p>{_figure_table(plan)}{_time(plan)}{_stages(plan)}'
        f"{_why(plan)}{_knobs(plan)}{_run_file(plan)}</article>"
    )


def key(plan: Plan) -> str:
    """A short name of a plan's set-up, which it keeps while other plans change its rank."""
    named = plan.file, sorted(plan.settings.items(), key=str)
    return f"{zlib.crc32(repr(named).encode()):08x}"


def _words(plan: Plan) -> str:
    first, *others = setup_words(plan)
    marked = "".join(f' <span data-compare="{text(w)}">{text(w)}</span>' for w in others)
    return f'<strong data-compare="{text(first)}">{text(first)}</strong>{marked}'


def figures(plan: Plan) -> Iterator[tuple[str, str]]:
    """The figures of a plan: name and text."""
    has = card(plan.run.get("hardware") or {}).memory_bytes
    spare = f"{abs(plan.headroom_bytes) / GIB:.1f} GiB"
    fits = f"fits, {spare} to spare" if plan.fits_on_gpu else f"does not fit, {spare} short"
    least = "" if plan.replayed else "at least "
    yield "verdict", fits if plan.replayed else "not replayed yet"
    yield "needs", f"{least}{card_bytes(plan) / GIB:.1f} of {has / GIB:.1f} GiB per GPU"
    if plan.serving is None:
        yield "step", f"{interval(plan.step_seconds)} s"
        yield "MFU", f"{100 * plan.mfu:.1f} %"
    else:
        yield "per output token", f"{interval(plan.step_seconds, MILLI)} ms"
        yield "first token", f"{interval(plan.serving.first_token_seconds)} s"
        yield "users", f"{plan.serving.users:,} (memory for {plan.serving.most_users:,})"
        yield "replicas", f"{plan.serving.replicas:,} on {plan.serving.gpus:,} GPUs"
    yield "tokens/s", rate_text(plan.tokens_per_second)
    if plan.host_bytes_per_node > USUAL:
        known = (plan.run.get("hardware") or {}).get("node_memory_gb")
        assumed = "" if known else " (assumed)"
        yield "host RAM", f"{gib(plan.host_bytes_per_node, 0)} GiB a node{assumed}"
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
    waits = "" if plan.replayed else ' class="waiting" title="not replayed yet"'
    return (
        f'<tr{waits}><td class="num"><button type="button" class="rank" data-plan="{plan.rank}" '
        f'aria-pressed="{str(plan.rank == 1).lower()}" aria-label="{text(label)}">{plan.rank}'
        f'</button></td><th scope="row">{text(words)}</th>'
        f"{num_cells(*(column.text(plan) for column in columns))}</tr>"
    )


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


def plan_body(plans: Plans, *, asked: bool = False) -> str:
    """The plans: the verdict, the front beside every plan, of which the first is shown, a table.

    asked: on the page of a service, with the question, and without the options of the command
    """
    if asked:
        limits = [OPTION.sub(r"set \1 in the calculator", one) for one in plans.limits]
        head = f'<h2 class="asked">{text(question_words(plans, hints=False))}</h2>'
        return head + plan_body(structs.replace(plans, limits=limits))
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
    """The plans: the best of each engine, then other ideas; a user's own as they are ranked."""
    columns = plan_columns(plans.plans)
    heads = ["#no.", "set-up", *(f"#{one.head}" for one in columns)]
    words = dict(zip((one.rank for one in plans.plans), setups_apart(plans.plans), strict=True))
    groups = by_idea(plans.plans)
    if plans.question.get("candidates") or len(groups) == 1:
        groups = [("", plans.plans)]
    folded = groups.pop() if len(groups) == len(GROUPS) else None

    def rows(title: str, listed: Sequence[Plan]) -> Iterator[str]:
        if title:
            head = f'<th scope="colgroup" colspan="{len(heads)}">{title}</th>'
            yield f'<tr class="group">{head}</tr>'
        yield from (row(one, ", ".join(words[one.rank]), columns) for one in listed)

    shown = chain.from_iterable(rows(*group) for group in groups)
    whole = table("Plans by number, 1 is the best", heads, shown, kind="ranked")
    if folded is None:
        return whole
    title, listed = folded
    more = table(title, heads, rows("", listed), kind="ranked")
    return f"{whole}<details><summary>{title}: {len(listed)}</summary>{more}</details>"
