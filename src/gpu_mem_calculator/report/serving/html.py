"""The serving part of the HTML report: a map of contexts by sequences, speed, changes."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...advice.serving.answers import Answers
from ...advice.serving.changes import ServingChange
from ...estimates.calculator import Estimate
from ...estimates.fit_verdict import WORDS
from ...estimates.serving.capacity import CapacityMatrix
from ...runfile.inference_config import ExpectedSpeed, ServingResult, SpeedResult
from ..html import html_report
from ..html_tables import num_cells, size, table, text
from ..shortfall import shortfall
from ..svg import svg_text
from .words import start_note, users_words

TITLES = {
    "room": "Users by context",
    "speed": "Speed",
    "changes": "What changes bring",
    "start": "Start it",
}
MAP_TITLE = "Share of the KV cache in use, by context and users"
CAPTION = (
    "Each cell: the share of the memory in use with so many users of so many tokens each. "
    "A crossed cell does not fit."
)
TENSORS = "It counts tensors; torch’s allocator needs more."  # where there is no pool
BOUND = (
    "Expected tokens per second: the upper bound (roofline: compute, memory bandwidth, "
    "interconnect) times the share that published benchmarks reach, with their range."
)
WIDTH = 840
LEAST_CELL, MOST_CELL, CELL_HEIGHT, LEFT, RIGHT, TOP = 44, 76, 30, 92, 4, 46
FEW = 6  # columns that fit on a narrow screen
SHADES = 5  # colours from empty to full


def serving_page(estimate: Estimate, answers: Answers) -> str:
    """The HTML report of a server."""
    return html_report(estimate, serving_sections(estimate, answers))


def serving_sections(estimate: Estimate, answers: Answers) -> str:
    """The sections of the report: capacity, speed, changes, the command."""
    return "".join(
        f'<section aria-labelledby="h-{name}"><h2 id="h-{name}">{TITLES[name]}</h2>{part}</section>'
        for name, part in serving_parts(estimate, answers).items()
    )


def serving_parts(estimate: Estimate, answers: Answers, *, width: int = WIDTH) -> dict[str, str]:
    """The parts of the report on a server as HTML, by name; `width` is the map's, in pixels."""
    serving = estimate.result.serving
    if serving is not None and serving.problem:
        return {"changes": _changes(answers)}
    parts = {}
    if has_cache_space(estimate):
        shown = answers.matrix if width == WIDTH else fewer_users(answers.matrix, width)
        parts["room"] = (
            f"{_figures(serving) if serving else ''}"
            f"<figure>{heat_map(shown, width=width)}"
            f"<figcaption>{CAPTION}{'' if serving else f' {TENSORS}'}</figcaption></figure>"
            "<details><summary>The same as a table</summary>"
            f"{_matrix_table(answers.matrix)}</details>"
        )
    parts["speed"] = _speed(answers.speed) if answers.speed else f"<p>{text(answers.no_speed)}</p>"
    parts["changes"] = _changes(answers)
    if serving and serving.command:
        words = text(serving.command)
        note = start_note(serving.command)
        parts["start"] = f'<pre class="all" tabindex="0"><code>{words}</code></pre>' + (
            f"<p>{text(note)}</p>" if note else ""
        )
    return parts


def has_cache_space(estimate: Estimate) -> bool:
    """Whether there is a cache to fill: the server starts, and the model caches something."""
    serving = estimate.result.serving
    return serving is None or (not serving.problem and serving.kv_tokens > 0)


def _figures(serving: ServingResult) -> str:
    rows = [
        ("Users", f"{serving.users:,} at {serving.users_context:,} tokens each"),
        ("KV cache", f"{size(serving.kv_pool_bytes)} GiB, {serving.kv_tokens:,} tokens"),
        ("Per token", f"{serving.kv_bytes_per_token:,} bytes"),
        ("Longest", f"{serving.longest_context:,} tokens in one sequence"),
    ]
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="setup">{items}</dl>'


class CellMap(Struct, frozen=True):
    """The SVG lines of a map of cells, and its size in pixels."""

    lines: list[str]
    width: int
    height: int


def fewer_users(matrix: CapacityMatrix, width: int) -> CapacityMatrix:
    """The matrix with as many numbers of users as a map of this width has room for."""
    room = max(2, (width - LEFT - RIGHT) // LEAST_CELL)
    every = -(-len(matrix.concurrencies) // room)
    return replace(
        matrix,
        concurrencies=matrix.concurrencies[::every],
        shares=tuple(row[::every] for row in matrix.shares),
    )


def cell_map(matrix: CapacityMatrix, *, width: int = WIDTH) -> CellMap:
    """The map: a row for each context, a column for each number of sequences.

    It is wider than `width` where cells would be too small to read.
    """
    columns = len(matrix.concurrencies)
    cell = min(MOST_CELL, max(LEAST_CELL, (width - LEFT - RIGHT) // columns))
    lines = [
        _axis(f"{LEFT + cell * columns / 2:g}", 14, "users", "middle"),
        _axis(LEFT - 8, 14, "context", "end"),
    ]
    for column, number in enumerate(matrix.concurrencies):
        lines.append(_axis(f"{LEFT + cell * (column + 0.5):g}", 36, f"{number:,}", "middle"))
    for row, context in enumerate(matrix.contexts):
        y = TOP + CELL_HEIGHT * row
        lines.append(_axis(LEFT - 8, y + 20, f"{context:,}", "end"))
        for column, share in enumerate(matrix.shares[row]):
            title = f"{context:,} tokens × {matrix.concurrencies[column]:,}"
            lines.append(_cell(share, LEFT + cell * column, y, cell, title))
    height = TOP + CELL_HEIGHT * len(matrix.contexts) + RIGHT
    return CellMap(lines, LEFT + cell * columns + RIGHT, height)


def _axis(x: object, y: int, words: str, anchor: str) -> str:
    return svg_text(x, y, words, kind="axis", anchor=anchor)


def heat_map(matrix: CapacityMatrix, *, width: int = WIDTH) -> str:
    """The map as SVG in a scrolling box."""
    cells = cell_map(matrix, width=width)
    columns = len(matrix.concurrencies)
    kind = (
        "heat"
        if columns <= FEW or cells.width <= width < WIDTH
        else "heat many"
        if cells.width <= WIDTH
        else "heat most"
    )
    return (
        f'<div class="scroll"><svg class="{kind}" width="{cells.width}" height="{cells.height}" '
        f'viewBox="0 0 {cells.width} {cells.height}" role="img" aria-label="{MAP_TITLE}">'
        f"{''.join(cells.lines)}</svg></div>"
    )


def _cell(share: float | None, x: int, y: int, width: int, title: str) -> str:
    box = f'x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{CELL_HEIGHT - 2}" rx="3"'
    if share is None or share > 1:
        cross = f'<path class="h-cross" d="M{x + width / 2 - 9:g} {y + 10}l18 10m0 -10l-18 10"/>'
        return f'<g><title>{title}: does not fit</title><rect class="h-no" {box}/>{cross}</g>'
    level = min(SHADES - 1, int(share * SHADES))
    ink = "on-full" if level == SHADES - 1 else "on-heat"
    label = f"{100 * share:.0f} %" if share >= 0.01 else "&lt; 1 %"
    words = svg_text(f"{x + width / 2:g}", y + 20, label, kind=ink, anchor="middle")
    return f'<g><title>{title}: {label}</title><rect class="h-{level}" {box}/>{words}</g>'


def _matrix_table(matrix: CapacityMatrix) -> str:
    rows = []
    for row, context in enumerate(matrix.contexts):
        shares = ("-" if s is None or s > 1 else f"{100 * s:.1f} %" for s in matrix.shares[row])
        cells = num_cells(*shares, f"{matrix.most[row]:,}")
        rows.append(f'<tr><th scope="row" class="num">{context:,}</th>{cells}</tr>')
    heads = ["#context", *(f"#{number:,}" for number in matrix.concurrencies), "#most users"]
    return table("share of the memory in use, by context and users", heads, rows, kind="entries")


def pace(speed: SpeedResult) -> str:
    """The speed in three lines: of one user, of the most, and the first token."""
    rows = []
    for one in dict.fromkeys((speed.decode[0], speed.decode[-1]) if speed.decode else ()):
        found, users = one.expected, one.sequences
        rate = (one.tokens_per_second if found is None else found.median) / users
        words = f"{'at most ' if found is None else ''}{rate:,.0f} tokens/s"
        if users > 1:
            words += f" each, {rate * users:,.0f} in all"
        elif found is not None:
            words += f" ({found.least:,.0f}–{found.most:,.0f})"
        rows.append((f"{users_words(users, speed.context)}{' each' * (users > 1)}", words))
    first = 1000 * speed.first_token_seconds
    rows.append(("First token", f"{first:,.0f} ms at best, after {speed.prompt_len:,} tokens"))
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="pace">{items}</dl>'


def _speed(speed: SpeedResult) -> str:
    first, each = f"first token, prompt of {speed.prompt_len:,}", 1000 * speed.first_token_seconds
    rate, bound = speed.prefill_tokens_per_second, speed.prefill_bound
    rows = [_speed_row(first, speed.expected_prefill, rate, f"{each:,.1f} ms", bound)]
    for one in speed.decode:
        each_says = f"{one.tokens_per_second_each:,.1f} tokens/s each"
        head = f"decode, {users_words(one.sequences, speed.context)}"
        rows.append(_speed_row(head, one.expected, one.tokens_per_second, each_says, one.bound))
    heads = ["", "#expected", "#upper bound", "#each at most", "bounded by"]
    sentence = " ".join([*(f"Computed {note}." for note in speed.notes), shortfall(speed.engine)])
    rates_table = table("tokens per second", heads, rows, kind="entries")
    return f'<p>{text(BOUND)}</p>{rates_table}<p class="soft">{text(sentence)}</p>'


def _speed_row(
    head: str, expected: ExpectedSpeed | None, rate: float, each: str, bound: str
) -> str:
    says = "-" if expected is None else f"{expected.median:,.0f}"
    if expected is not None:
        says += f" ({expected.least:,.0f}–{expected.most:,.0f})"
    cells = num_cells(says, f"{rate:,.0f}", each)
    return f'<tr><th scope="row">{head}</th>{cells}<td>{bound}</td></tr>'


def _changes(answers: Answers) -> str:
    rows = [_change(one) for one in (*answers.remedies, *answers.what_ifs)]
    heads = ["", "#GiB per GPU", "#tokens", "#users", "~command"]
    return table("sets of changes that fit, then one change at a time", heads, rows, kind="entries")


def _change(one: ServingChange) -> str:
    if one.problem or not one.fits:
        why = text(one.problem) if one.problem else WORDS[one.verdict]
        return f'<tr><th scope="row">{text(one.title)}</th><td colspan="4">{why}</td></tr>'
    users = f"{one.users:,} at {one.context:,}"
    figures = num_cells(size(one.device_bytes), f"{one.kv_tokens:,}", users)
    what = f'<td class="what"><code>{text(one.command)}</code></td>'
    return f'<tr><th scope="row">{text(one.title)}</th>{figures}{what}</tr>'
