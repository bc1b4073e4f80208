"""The serving part of the HTML report: contexts by sequences as a picture, speed, what if."""

from __future__ import annotations

import shlex

from msgspec import Struct

from ..core.calculator import Estimate
from ..core.inference_config import ServingResult, SpeedResult
from ..core.serving_answers import Answers
from ..core.serving_capacity import CapacityMatrix, ServingChange
from .html import html_report
from .html_tables import size, table, text
from .shortfall import shortfall

TITLES = {
    "room": "Room for how many, at which context",
    "speed": "Speed at best",
    "changes": "What if",
    "start": "Start it",
}
MAP_TITLE = "How full the cache gets, context by number of sequences"
CAPTION = ("Each cell: how full it gets with so many sequences of so many tokens. "
           "A crossed cell does not fit.")  # fmt: skip
WIDTH = 840
LEAST_CELL, MOST_CELL, CELL_HEIGHT, LEFT, RIGHT, TOP = 44, 76, 30, 92, 4, 46
FEW = 6  # columns that fit on a narrow screen
SHADES = 5  # steps of the colour, from empty to full


def serving_page(estimate: Estimate, found: Answers) -> str:
    """The whole page."""
    return html_report(estimate, serving_sections(estimate, found))


def serving_sections(estimate: Estimate, found: Answers) -> str:
    """Room, speed, what if, the command."""
    return "".join(
        f'<section aria-labelledby="h-{name}"><h2 id="h-{name}">{TITLES[name]}</h2>{part}</section>'
        for name, part in serving_parts(estimate, found).items()
    )


def serving_parts(estimate: Estimate, found: Answers, *, width: int = WIDTH) -> dict[str, str]:
    """What there is to say of a server, by name; `width` is that of the map."""
    serving = estimate.result.serving
    if serving is not None and serving.problem:
        return {"changes": _changes(found)}
    parts = {}
    if has_room(estimate):
        parts["room"] = (
            f"{_figures(serving) if serving else ''}"
            f"<figure>{heat_map(found.matrix, width=width)}<figcaption>{CAPTION}</figcaption>"
            "</figure><details><summary>The same as a table</summary>"
            f"{_matrix_table(found.matrix)}</details>"
        )
    parts["speed"] = _speed(found.speed) if found.speed else f"<p>{text(found.no_speed)}</p>"
    parts["changes"] = _changes(found)
    if serving and serving.command:
        words = text(serving.command)
        parts["start"] = f'<pre class="all" tabindex="0"><code>{words}</code></pre>'
    return parts


def has_room(estimate: Estimate) -> bool:
    """Whether there is anything to fill: a server that starts, and a model that keeps something."""
    serving = estimate.result.serving
    return serving is None or (not serving.problem and serving.kv_tokens > 0)


def _figures(serving: ServingResult) -> str:
    rows = [
        ("Cache", f"{size(serving.kv_pool_bytes)} GiB, {serving.kv_tokens:,} tokens"),
        ("A token", f"{serving.kv_bytes_per_token:,} bytes"),
        ("At once", f"{serving.max_concurrency:,.1f} sequences of {serving.max_seq_len:,} tokens"),
        ("Longest", f"{serving.longest_context:,} tokens in one sequence"),
    ]
    made = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="setup">{made}</dl>'


class CellMap(Struct, frozen=True, kw_only=True):
    """The lines of a map of cells, and how much room it takes."""

    lines: list[str]
    width: int
    height: int


def drawn_map(matrix: CapacityMatrix, *, width: int = WIDTH) -> CellMap:
    """Contexts down, sequences across; wider than asked where cells would be too small to read."""
    columns = len(matrix.concurrencies)
    cell = min(MOST_CELL, max(LEAST_CELL, (width - LEFT - RIGHT) // columns))
    lines = [
        f'<text class="axis" x="{LEFT + cell * columns / 2:g}" y="14" text-anchor="middle">'
        "sequences at once</text>",
        f'<text class="axis" x="{LEFT - 8}" y="14" text-anchor="end">context</text>',
    ]
    for column, number in enumerate(matrix.concurrencies):
        x = LEFT + cell * (column + 0.5)
        lines.append(f'<text class="axis" x="{x:g}" y="36" text-anchor="middle">{number:,}</text>')
    for row, context in enumerate(matrix.contexts):
        y = TOP + CELL_HEIGHT * row
        lines.append(f'<text class="axis" x="{LEFT - 8}" y="{y + 20}" text-anchor="end">'
                     f"{context:,}</text>")  # fmt: skip
        for column, share in enumerate(matrix.shares[row]):
            said = f"{context:,} tokens × {matrix.concurrencies[column]:,}"
            lines.append(_cell(share, LEFT + cell * column, y, cell, said))
    return CellMap(lines=lines, width=LEFT + cell * columns + RIGHT,
               height=TOP + CELL_HEIGHT * len(matrix.contexts) + RIGHT)  # fmt: skip


def heat_map(matrix: CapacityMatrix, *, width: int = WIDTH) -> str:
    """The map as SVG that scrolls by itself where there is no room for it."""
    made = drawn_map(matrix, width=width)
    columns = len(matrix.concurrencies)
    kind = "heat" if columns <= FEW else "heat many" if made.width <= WIDTH else "heat most"
    return (
        f'<div class="scroll"><svg class="{kind}" width="{made.width}" height="{made.height}" '
        f'viewBox="0 0 {made.width} {made.height}" role="img" aria-label="{MAP_TITLE}">'
        f"{''.join(made.lines)}</svg></div>"
    )


def _cell(share: float | None, x: int, y: int, wide: int, said: str) -> str:
    box = f'x="{x + 1}" y="{y + 1}" width="{wide - 2}" height="{CELL_HEIGHT - 2}" rx="3"'
    if share is None or share > 1:
        cross = f"M{x + wide / 2 - 9:g} {y + 10}l18 10m0 -10l-18 10"
        return (f'<g><title>{said}: does not fit</title><rect class="h-no" {box}/>'
                f'<path class="h-cross" d="{cross}"/></g>')  # fmt: skip
    level = min(SHADES - 1, int(share * SHADES))
    ink = "on-full" if level == SHADES - 1 else "on-heat"
    label = f"{100 * share:.0f} %" if share >= 0.01 else "&lt; 1 %"
    return (f'<g><title>{said}: {label}</title><rect class="h-{level}" {box}/>'
            f'<text class="{ink}" x="{x + wide / 2:g}" y="{y + 20}" '
            f'text-anchor="middle">{label}</text></g>')  # fmt: skip


def _matrix_table(matrix: CapacityMatrix) -> str:
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


def _change(one: ServingChange) -> str:
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
