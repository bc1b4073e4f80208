"""How far engines stay below the upper bound of speed, by public figures."""

from __future__ import annotations

from ..serving import server
from ..timing.measured import ALONE, PROMPTS, SHARES, TOGETHER, ReachedShare

WORDS = {PROMPTS: "with prompts", ALONE: "alone", TOGETHER: "together"}


def shortfall(engine: str) -> str:
    """A sentence with the median, the range and the number of public figures of an engine."""
    title, shares = server(engine).title, SHARES.get(engine, {})
    if not shares:
        return f"An upper bound. No public figures of {title} are compared; see docs/speed.md."
    parts = [
        _share_words(shares[regime], word, number == 0)
        for number, (regime, word) in enumerate(_regimes(engine))
    ]
    return f"An upper bound. Public figures of {title} reach {', '.join(parts)}; see docs/speed.md."


def _regimes(engine: str) -> list[tuple[str, str]]:
    return [(regime, word) for regime, word in WORDS.items() if regime in SHARES[engine]]


def _share_words(share: ReachedShare, word: str, first: bool) -> str:
    of, figures = (" of it", " figures") if first else ("", "")
    return (
        f"{_percent(share.median)}{of} {word} ({100 * share.least:.0f} to "
        f"{_percent(share.most)}, {share.count}{figures})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"
