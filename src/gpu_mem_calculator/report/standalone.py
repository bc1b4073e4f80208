"""The picture as one self-contained SVG file.

It may be shown in a browser, a slide or a document, so it has a title, and its colours are literal
values of one theme instead of CSS variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from textwrap import wrap

from msgspec import Struct

from ..estimates.calculator import Estimate
from ..estimates.serving.capacity import CONCURRENCIES, matrix
from ..estimates.verdict_words import needs_words, result_verdict, total_bytes
from .headline import setup_words
from .html import asset, estimate_page, verdict_parts
from .html_tables import text
from .lines import gib
from .patterns import patterns, titles
from .picture import TITLE, drawing
from .serving.html import CAPTION, LEAST_CELL, LEFT, RIGHT, TITLES, WIDTH, cell_map, has_cache_space
from .svg import CHARACTER

THEMES = ("light", "dark")
TONES = {"fits": "good", "unsure": "warn", "fails": "bad"}
PAD, GAP = 16, 14  # pixels around everything, and between the blocks
MOST_LINES = 6  # of a paragraph
# The CSS rules that the picture needs: those of its contents, not of its place on a page.
RULES = re.compile(r"^(?:\.step [.t]|\.heat [.t]|\.k-|pattern ).*$", re.MULTILINE)


class SvgBlock(Struct, frozen=True):
    """Some lines of SVG, their height in pixels, and the class of their group."""

    lines: list[str]
    height: float
    kind: str = ""


def standalone(estimate: Estimate, *, width: int, theme: str) -> str:
    """The picture with title and legend, `width` pixels wide; a server's has the capacity map."""
    colours, inner = tokens(theme), width - 2 * PAD
    blocks = [_head(estimate, inner, colours), *_step(estimate, inner, colours)]
    if estimate.serves and has_cache_space(estimate):
        blocks += _capacity_map(estimate, inner, colours)
    y, groups = PAD, []
    for block in blocks:
        kind = f' class="{block.kind}"' if block.kind else ""
        groups.append(f'<g{kind} transform="translate({PAD} {y:g})">{"".join(block.lines)}</g>')
        y += round(block.height) + GAP
    height = y - GAP + PAD
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{text(_words(estimate))}">',
            f"<style>\n{rules(theme)}\n</style>",
            f"<defs>{patterns()}</defs>",
            f'<rect width="{width}" height="{height}" fill="{colours["paper"]}"/>',
            *groups,
            "</svg>",
        ]
    )


@cache
def tokens(theme: str) -> dict[str, str]:
    """The value of every CSS variable in a theme."""
    variables = re.findall(r"--([\w-]+):\s*([^;]+);", asset("tokens.css"))
    both = re.compile(r"light-dark\((.+), (.+)\)")
    return {name: both.sub(rf"\{THEMES.index(theme) + 1}", value) for name, value in variables}


@cache
def rules(theme: str) -> str:
    """The CSS of the picture, with values in place of variables."""
    values = tokens(theme)
    lines = [line for line in RULES.findall(asset("page.css")) if ":hover" not in line]
    css = re.sub(r"var\(--([\w-]+)\)", lambda match: values[match[1]], "\n".join(lines))
    return f"text {{ font-family: {values['font']}; }}\n{css}"


def _words(estimate: Estimate) -> str:
    """The picture's description in one sentence."""
    _, _, words = verdict_parts(estimate)
    where = next(iter(setup_words(estimate)))
    return f"{TITLE}: {estimate.resolved.model.title}, {where}; {_needs(estimate)}: {words}"


def _needs(estimate: Estimate) -> str:
    result = estimate.result
    if result.serving is None:
        needs = f"needs {needs_words(result_verdict(estimate.result))}"
    else:
        needs = f"takes {gib(total_bytes(estimate.result))}"
    return f"{needs} of {gib(result.gpu_memory_bytes)} GiB per GPU"


def _head(estimate: Estimate, width: int, colours: dict[str, str]) -> SvgBlock:
    """The title block: the model, its engine and hardware, and the verdict."""
    tone, sign, verdict = verdict_parts(estimate)
    rows = [
        (estimate.resolved.model.title, 20, 650, "ink"),
        (", ".join(setup_words(estimate)), 13, 400, "soft"),
        (f"{sign} {verdict}", 16, 650, TONES[tone]),
        (_needs(estimate), 13, 400, "ink"),
    ]
    if estimate.result.needs_bytes is None:
        rows.append(("without what torch’s allocator adds", 13, 400, "soft"))
    lines, y = [], 0.0
    for words, size, weight, colour in rows:
        paragraph = _paragraph(words, width, size, colours[colour], weight)
        lines.append(f'<g transform="translate(0 {y:g})">{"".join(paragraph.lines)}</g>')
        y += paragraph.height
    return SvgBlock(lines, y)


def _paragraph(words: str, width: int, size: int, colour: str, weight: int = 400) -> SvgBlock:
    """Words in up to six lines; longer texts are shortened."""
    pieces = wrap(words, int(width / (CHARACTER * size)), max_lines=MOST_LINES, placeholder=" …")
    lines = [
        _line(piece, 1.4 * size * (i + 1) - 0.4 * size, size, colour, weight)
        for i, piece in enumerate(pieces)
    ]
    return SvgBlock(lines, 1.4 * size * len(pieces))


def _line(words: str, y: float, size: int, colour: str, weight: int = 400, x: float = 0) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{text(words)}</text>'
    )


def _step(estimate: Estimate, width: int, colours: dict[str, str]) -> Iterator[SvgBlock]:
    """The picture of the step, and its legend."""
    page = estimate_page(estimate)
    limit = page.result.gpu_memory_bytes
    drawn = drawing(page.columns, page.peak, limit, width=width, phases=page.result.phases)
    yield SvgBlock(drawn.lines, drawn.height, "step")
    yield _legend(titles(estimate.ledger).items(), width, colours["ink"])


def _legend(kinds: Iterable[tuple[str, str]], width: int, ink: str) -> SvgBlock:
    """A sample and the title of each kind, as many in a row as fit."""
    lines, x, y = [], 0.0, 0
    for kind, title in kinds:
        item_width = 22 + len(title) * 13 * CHARACTER
        if x and x + item_width > width:
            x, y = 0.0, y + 22
        lines.append(
            f'<rect x="{x:g}" y="{y}" width="14" height="14" fill="url(#p-{kind})"/>'
            f"{_line(title, y + 12, 13, ink, x=x + 22)}"
        )
        x += round(item_width) + 18
    return SvgBlock(lines, y + 16)


def _capacity_map(estimate: Estimate, width: int, colours: dict[str, str]) -> Iterator[SvgBlock]:
    """The capacity map with its title; a narrow one has fewer numbers of sequences."""
    cells = max(1, (width - LEFT - RIGHT) // LEAST_CELL)
    counts = CONCURRENCIES[:: -(-len(CONCURRENCIES) // cells)]
    made = cell_map(matrix(estimate, concurrencies=counts), width=min(width, WIDTH))
    yield _paragraph(TITLES["room"], width, 16, colours["ink"], 650)
    yield SvgBlock(made.lines, made.height, "heat")
    yield _paragraph(CAPTION, width, 12, colours["soft"])
