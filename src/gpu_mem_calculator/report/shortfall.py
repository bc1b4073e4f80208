"""What share of the upper bound of speed published benchmarks of an engine reach."""

from __future__ import annotations

from ..serving import server
from ..timing.serving.measured import ALONE, PROMPTS, SHARES, TOGETHER, ReachedShare

WORDS = {PROMPTS: "for prefill", ALONE: "for one stream", TOGETHER: "for batches"}
SEE = "see docs/speed.md"


def shortfall(engine: str) -> str:
    """A sentence with the median, the range and the number of published benchmarks."""
    title, shares = server(engine).title, SHARES.get(engine, {})
    if not shares:
        return f"No published benchmarks of {title} were compared with this bound; {SEE}."
    named = [(shares[regime], word) for regime, word in WORDS.items() if regime in shares]
    parts = [_share_words(*one, first=number == 0) for number, one in enumerate(named)]
    return f"Published {title} benchmarks reach a median {', '.join(parts)}; {SEE}."


def _share_words(share: ReachedShare, word: str, *, first: bool) -> str:
    of_it, count = (" of this", "n = ") if first else ("", "")
    return (
        f"{_percent(share.median)}{of_it} {word} ({100 * share.least:.0f}–"
        f"{_percent(share.most)}, {count}{share.count})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"
