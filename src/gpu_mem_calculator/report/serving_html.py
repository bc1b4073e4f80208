"""The serving part of the HTML report: contexts by sequences as a picture, speed, what if."""

from __future__ import annotations

import shlex

from ..core.answers import Answers
from ..core.calculator import Estimate
from ..core.capacity import Change, Matrix
from ..core.inference_config import ServingResult, SpeedResult
from .html import html_report
from .html_tables import size, table, text
from .shortfall import shortfall

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 62, 30, 92, 46
SHADES = 5  # steps of the colour, from empty to full


def serving_page(estimate: Estimate, found: Answers) -> str:
    """The whole page."""
    return html_report(estimate, serving_sections(estimate, found))


def serving_sections(estimate: Estimate, found: Answers) -> str:
    """Room, speed, what if, the command."""
    serving = estimate.result.serving
    if serving is not None and serving.problem:
        return _section("changes", "What if", [_changes(found)])
    kept = serving is None or serving.kv_tokens > 0
    parts = [
        "" if not kept else _section("room", "Room for how many, at which context", [
            *([_figures(serving)] if serving else []),
            f"<figure>{heat_map(found.matrix)}<figcaption>Each cell: how full it gets with so many "
            "sequences of so many tokens. A crossed cell does not fit.</figcaption></figure>",
            "<details><summary>The same as a table</summary>"
            f"{_matrix_table(found.matrix)}</details>",
        ]),
        _section("speed", "Speed at best", [
            _speed(found.speed) if found.speed else f"<p>{text(found.no_speed)}</p>"]),
        _section("changes", "What if", [_changes(found)]),
    ]  # fmt: skip
    if serving and serving.command:
        words = text(serving.command)
        parts.append(_section("start", "Start it", [
            f'<pre class="all" tabindex="0"><code>{words}</code></pre>',
        ]))  # fmt: skip
    return "".join(parts)


def _section(name: str, title: str, parts: list[str]) -> str:
    return (f'<section aria-labelledby="h-{name}"><h2 id="h-{name}">{title}</h2>'
            f"{''.join(parts)}</section>")  # fmt: skip


def _figures(serving: ServingResult) -> str:
    rows = [
        ("Cache", f"{size(serving.kv_pool_bytes)} GiB, {serving.kv_tokens:,} tokens"),
        ("A token", f"{serving.kv_bytes_per_token:,} bytes"),
        ("At once", f"{serving.max_concurrency:,.1f} sequences of {serving.max_seq_len:,} tokens"),
        ("Longest", f"{serving.longest_context:,} tokens in one sequence"),
    ]
    made = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="setup">{made}</dl>'


def heat_map(matrix: Matrix) -> str:
    """Contexts down, sequences across, as SVG."""
    width = LEFT + CELL_WIDTH * len(matrix.concurrencies) + 4
    height = TOP + CELL_HEIGHT * len(matrix.contexts) + 4
    middle = LEFT + CELL_WIDTH * len(matrix.concurrencies) / 2
    made = [
        f'<text class="axis" x="{middle:.0f}" y="14" text-anchor="middle">sequences at once</text>',
        f'<text class="axis" x="{LEFT - 8}" y="14" text-anchor="end">context</text>',
    ]
    for column, number in enumerate(matrix.concurrencies):
        x = LEFT + CELL_WIDTH * (column + 0.5)
        made.append(f'<text class="axis" x="{x:.0f}" y="36" text-anchor="middle">{number:,}</text>')
    for row, context in enumerate(matrix.contexts):
        y = TOP + CELL_HEIGHT * row
        made.append(f'<text class="axis" x="{LEFT - 8}" y="{y + 20}" text-anchor="end">'
                    f"{context:,}</text>")  # fmt: skip
        for column, share in enumerate(matrix.shares[row]):
            said = f"{context:,} tokens × {matrix.concurrencies[column]:,}"
            made.append(_cell(share, LEFT + CELL_WIDTH * column, y, said))
    title = "How full the cache gets, context by number of sequences"
    return (f'<div class="scroll"><svg class="heat" viewBox="0 0 {width} {height}" '
            f'style="min-width:{width * 0.7:.0f}px" role="img" aria-label="{title}">'
            f"{''.join(made)}</svg></div>")  # fmt: skip


def _cell(share: float | None, x: int, y: int, said: str) -> str:
    box = f'x="{x + 1}" y="{y + 1}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" rx="3"'
    if share is None or share > 1:
        cross = f"M{x + 22} {y + 10}l18 10m0 -10l-18 10"
        return (f'<g><title>{said}: does not fit</title><rect class="h-no" {box}/>'
                f'<path class="h-cross" d="{cross}"/></g>')  # fmt: skip
    level = min(SHADES - 1, int(share * SHADES))
    label = f"{100 * share:.0f} %" if share >= 0.01 else "&lt; 1 %"
    return (f'<g><title>{said}: {label}</title><rect class="h-{level}" {box}/>'
            f'<text class="h-t{level}" x="{x + CELL_WIDTH / 2:.0f}" y="{y + 20}" '
            f'text-anchor="middle">{label}</text></g>')  # fmt: skip


def _matrix_table(matrix: Matrix) -> str:
    rows = []
    for row, context in enumerate(matrix.contexts):
        cells = "".join(
            f'<td class="num">{"-" if share is None or share > 1 else f"{100 * share:.1f} %"}</td>'
            for share in matrix.shares[row]
        )
        rows.append(f'<tr><th scope="row" class="num">{context:,}</th>{cells}'
                    f'<td class="num">{matrix.most[row]:,}</td></tr>')  # fmt: skip
    heads = ["#context", *(f"#{number:,}" for number in matrix.concurrencies), "#most"]
    return table("share of the room, by context and sequences", heads, rows, kind="entries")


def _speed(found: SpeedResult) -> str:
    rows = [
        f'<tr><th scope="row">first token, prompt of {found.prompt_len:,}</th>'
        f'<td class="num">{found.prefill_tokens_per_second:,.0f}</td>'
        f'<td class="num">{1000 * found.first_token_seconds:,.1f} ms</td>'
        f"<td>{found.prefill_bound}</td></tr>"
    ]
    for one in found.decode:
        rows.append(
            f'<tr><th scope="row">decoding, {one.sequences:,} at once</th>'
            f'<td class="num">{one.tokens_per_second:,.0f}</td>'
            f'<td class="num">{one.tokens_per_second_each:,.1f} tokens/s each</td>'
            f"<td>{one.bound}</td></tr>"
        )
    heads = ["", "#tokens/s", "#each", "bounded by"]
    said = " ".join([*(f"These are {note}." for note in found.notes), shortfall(found.engine)])
    shown = table("tokens a second", heads, rows, kind="entries")
    return f'<p class="soft">{text(said)}</p>{shown}'


def _changes(found: Answers) -> str:
    rows = [_change(one) for one in (*filter(None, [found.fewest_gpus]), *found.what_ifs)]
    heads = ["", "#takes, GiB", "#tokens", "#sequences", "~setting"]
    return table("one change at a time", heads, rows, kind="entries")


def _change(one: Change) -> str:
    setting = text(shlex.join(word for each in one.setting for word in ("--set", each)))
    if one.problem or not one.fits:
        why = text(one.problem) if one.problem else "does not fit"
        return f'<tr><th scope="row">{text(one.title)}</th><td colspan="4">{why}</td></tr>'
    return (
        f'<tr><th scope="row">{text(one.title)}</th>'
        f'<td class="num">{size(one.device_bytes)}</td><td class="num">{one.kv_tokens:,}</td>'
        f'<td class="num">{one.max_concurrency:,.1f}</td>'
        f'<td class="what"><code>{setting}</code></td></tr>'
    )
