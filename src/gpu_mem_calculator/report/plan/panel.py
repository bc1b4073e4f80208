"""One plan in HTML: its figures, memory by stage, parts of its time, and its run file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...ledger.units import GIB
from ..html_tables import num_cells, size, table, text
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
from .figures import MILLI, PlanColumn, interval
from .words import change_words, engine_words, setup_words

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan

SHOWN_STAGES = 8  # pipeline stages in full; of more, the first, the last and the largest


def panel(plan: Plan, *, shown: bool) -> str:
    """A plan as an article, which `plans.js` shows, hides and compares."""
    name = f"plan-{plan.rank}"
    hidden = "" if shown else " hidden"
    return (
        f'<article class="plan" data-rank="{plan.rank}" aria-labelledby="{name}"{hidden}>'
        f'<header><h2 id="{name}">Plan {plan.rank}</h2>'
        f'<button type="button" class="button" data-keep="{plan.rank}">Compare</button></header>'
        f'<p class="words">{_words(plan)}</p>{_figures(plan)}{_time(plan)}{_stages(plan)}'
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


def _figures(plan: Plan) -> str:
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
    items = "".join(f"<li>{text(one)}</li>" for one in plan.why)
    return f'<h3>Why</h3><ul class="remarks">{items}</ul>' if items else ""


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
