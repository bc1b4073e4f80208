"""What was read from a command or a file, and what of it is not modelled, as lines of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..formats.reading.reading import Limit, Reading
from .lines import DIM, WARN, WIDTH, Line, line, wrap_lines

MOST_LIMITS = 4
EFFECTS = {"less": "it can only take less", "more": "it can take more", "either": ""}


def reading_lines(reading: Reading, width: int = WIDTH) -> list[Line]:
    """The tool that was recognised, and what is not modelled."""
    return [line(_counts(reading), DIM), *limit_lines(reading.limits, width)]


def _counts(reading: Reading) -> str:
    """How many keys were honoured, and how many take no memory."""
    title = f"{reading.tool} {reading.version}".rstrip()
    count = Counter(reading.keys.values())
    words = [f"{count['memory']} honoured"]
    if count["free"]:
        words.append(f"{count['free']} without effect on memory")
    if reading.limits:
        words.append(f"{len(reading.limits)} not modelled")
    return f"read as {title}: {', '.join(words)}" if reading.keys else f"read as {title}"


def limit_lines(limits: Sequence[Limit], width: int = WIDTH) -> Iterator[Line]:
    """A line or two for each thing that is not modelled; at most four of them."""
    for limit in limits[:MOST_LIMITS]:
        effect = EFFECTS[limit.could]
        text = f"{limit} ({effect})" if effect else str(limit)
        yield from wrap_lines("not modelled: ", text, WARN, width)
    if len(limits) > MOST_LIMITS:
        yield line(f"and {len(limits) - MOST_LIMITS} more; see --format json", WARN)
