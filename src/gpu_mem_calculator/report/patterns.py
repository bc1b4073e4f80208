"""The titles and fill patterns of the kinds of memory, for the picture, its legend and bars."""

from __future__ import annotations

from functools import cache

from ..ledger.ledger import CACHE, COMM, GRAD, OPTIM, RUNTIME, Ledger
from ..tools.translation.arguments import tables
from .parts import KIND_TITLES

# A pattern over the colour of each kind, so that kinds can be distinguished without colour. They
# are in the order of a column, from the bottom up.
PATTERNS = tables(__file__)
TITLES = {kind: KIND_TITLES[kind] for kind in PATTERNS} | {RUNTIME: "context, libraries"}


def titles(ledger: Ledger) -> dict[str, str]:
    """The kinds that a run can have: inference has a cache, training gradients and states; a policy
    that generates has both.
    """
    found = {entry.kind for entry in ledger.entries}
    trains, caches = bool(found & {GRAD, OPTIM}) or CACHE not in found, CACHE in found
    left_out = (*(() if trains else (GRAD, OPTIM, COMM)), *(() if caches else (CACHE,)))
    return {kind: title for kind, title in TITLES.items() if kind not in left_out}


def defs() -> str:
    """The SVG definitions of all patterns; needed once on a page."""
    return f'<svg class="defs" aria-hidden="true"><defs>{patterns()}</defs></svg>'


@cache
def patterns() -> str:
    """The SVG pattern of each kind."""
    return "".join(
        f'<pattern id="p-{kind}" width="{size}" height="{size}" patternUnits="userSpaceOnUse">'
        f'<rect class="k-{kind}" width="{size}" height="{size}"/>'
        f'<path class="on-{kind}" d="{path}"/></pattern>'
        for kind, (size, path) in PATTERNS.items()
    )


def swatch(kind: str) -> str:
    """A small square with a kind's colour and pattern."""
    return (
        f'<svg class="swatch" viewBox="0 0 16 16" aria-hidden="true">'
        f'<rect width="16" height="16" rx="2" fill="url(#p-{kind})"/></svg>'
    )
