"""The picture by itself: one SVG file that needs nothing beside it.

Who is asked for it may be a browser, a slide or a document, so what it is of is written on it, and
its colours are plain: the tokens of one theme, put in their places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from textwrap import wrap

from msgspec import Struct

from ..core.calculator import Estimate
from ..core.serving_capacity import CONCURRENCIES, matrix
from .headline import card_bytes, setup_words
from .html import asset, page_of, spoken
from .html_tables import text
from .lines import gib
from .patterns import patterns, titles
from .picture import CHARACTER, TITLE, drawing
from .serving_html import CAPTION, LEAST_CELL, LEFT, RIGHT, TITLES, WIDTH, drawn_map, has_room

THEMES = ("light", "dark")
TONES = {"fits": "good", "tight": "warn", "fails": "bad"}
PAD, GAP = 16, 14  # around everything, and between the blocks
MOST_LINES = 6  # of a paragraph
# Rules that a lone picture needs: of what is in it, not of how it lies on a page.
RULES = re.compile(r"^(?:\.step [.t]|\.heat [.t]|\.k-|pattern ).*$", re.MULTILINE)


class SvgBlock(Struct, frozen=True):
    """Some lines of SVG, and how high they are together."""

    lines: list[str]
    height: float
    kind: str = ""


def standalone(estimate: Estimate, *, width: int, theme: str) -> str:
    """The picture with its title and legend, `width` wide; a server's has the map of its room."""
    colours, inner = tokens(theme), width - 2 * PAD
    blocks = [_head(estimate, inner, colours), *_step(estimate, inner, colours)]
    if estimate.serves and has_room(estimate):
        blocks += _room(estimate, inner, colours)
    y, made = PAD, []
    for block in blocks:
        kind = f' class="{block.kind}"' if block.kind else ""
        made.append(f'<g{kind} transform="translate({PAD} {y:g})">{"".join(block.lines)}</g>')
        y += round(block.height) + GAP
    height = y - GAP + PAD
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{text(_words(estimate))}">',
        f"<style>\n{rules(theme)}\n</style>",
        f"<defs>{patterns()}</defs>",
        f'<rect width="{width}" height="{height}" fill="{colours["paper"]}"/>',
        *made, "</svg>",
    ])  # fmt: skip


@cache
def tokens(theme: str) -> dict[str, str]:
    """Every token's value in a theme."""
    found = re.findall(r"--([\w-]+):\s*([^;]+);", asset("tokens.css"))
    both = re.compile(r"light-dark\((.+), (.+)\)")
    return {name: both.sub(rf"\{THEMES.index(theme) + 1}", value) for name, value in found}


@cache
def rules(theme: str) -> str:
    """The style of a lone picture, with plain colours in the place of tokens."""
    values = tokens(theme)
    kept = [line for line in RULES.findall(asset("page.css")) if ":hover" not in line]
    plain = re.sub(r"var\(--([\w-]+)\)", lambda match: values[match[1]], "\n".join(kept))
    return f"text {{ font-family: {values['font']}; }}\n{plain}"


def _words(estimate: Estimate) -> str:
    """What the picture says, in one sentence."""
    _, _, words = spoken(estimate)
    where = next(iter(setup_words(estimate)))
    return f"{TITLE}: {estimate.resolved.model.title}, {where}; {_needs(estimate)}: {words}"


def _needs(estimate: Estimate) -> str:
    result = estimate.result
    takes = "needs" if result.serving is None else "takes"
    card = gib(card_bytes(estimate), 2)
    return f"{takes} {card} of {gib(result.gpu_memory_bytes, 2)} GiB per GPU"


def _head(estimate: Estimate, width: int, colours: dict[str, str]) -> SvgBlock:
    """The model, its engine on its cards, and the verdict."""
    tone, sign, said = spoken(estimate)
    rows = [
        (estimate.resolved.model.title, 20, 650, "ink"),
        (", ".join(setup_words(estimate)), 13, 400, "soft"),
        (f"{sign} {said}", 16, 650, TONES[tone]),
        (_needs(estimate), 13, 400, "ink"),
    ]
    if estimate.result.needs_bytes is None:
        rows.append(("without what torch’s allocator adds", 13, 400, "soft"))
    lines, y = [], 0.0
    for words, size, weight, colour in rows:
        made = _paragraph(words, width, size, colours[colour], weight)
        lines.append(f'<g transform="translate(0 {y:g})">{"".join(made.lines)}</g>')
        y += made.height
    return SvgBlock(lines, y)


def _paragraph(words: str, width: int, size: int, colour: str, weight: int = 400) -> SvgBlock:
    """Words in as many lines as they take, cut where that is too many."""
    pieces = wrap(words, int(width / (CHARACTER * size)), max_lines=MOST_LINES, placeholder=" …")
    lines = [_line(piece, 1.4 * size * (i + 1) - 0.4 * size, size, colour, weight)
             for i, piece in enumerate(pieces)]  # fmt: skip
    return SvgBlock(lines, 1.4 * size * len(pieces))


def _line(words: str, y: float, size: int, colour: str, weight: int = 400, x: float = 0) -> str:
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
            f'fill="{colour}">{text(words)}</text>')  # fmt: skip


def _step(estimate: Estimate, width: int, colours: dict[str, str]) -> Iterator[SvgBlock]:
    """The instants, and what their colours and patterns stand for."""
    page = page_of(estimate)
    limit = page.result.gpu_memory_bytes
    drawn = drawing(page.columns, page.peak, limit, width=width)
    yield SvgBlock(drawn.lines, drawn.height, "step")
    yield _legend(titles(estimate.ledger).items(), width, colours["ink"])


def _legend(kinds: Iterable[tuple[str, str]], width: int, ink: str) -> SvgBlock:
    """A sample and a word for each kind, as many in a row as there is room for."""
    lines, x, y = [], 0.0, 0
    for kind, title in kinds:
        long = 22 + len(title) * 13 * CHARACTER
        if x and x + long > width:
            x, y = 0.0, y + 22
        lines.append(f'<rect x="{x:g}" y="{y}" width="14" height="14" fill="url(#p-{kind})"/>'
                     f"{_line(title, y + 12, 13, ink, x=x + 22)}")  # fmt: skip
        x += round(long) + 18
    return SvgBlock(lines, y + 16)


def _room(estimate: Estimate, width: int, colours: dict[str, str]) -> Iterator[SvgBlock]:
    """The map under its title; a narrow one has every second or third number of sequences."""
    cells = max(1, (width - LEFT - RIGHT) // LEAST_CELL)
    counts = CONCURRENCIES[:: -(-len(CONCURRENCIES) // cells)]
    made = drawn_map(matrix(estimate, concurrencies=counts), width=min(width, WIDTH))
    yield _paragraph(TITLES["room"], width, 16, colours["ink"], 650)
    yield SvgBlock(made.lines, made.height, "heat")
    yield _paragraph(CAPTION, width, 12, colours["soft"])
