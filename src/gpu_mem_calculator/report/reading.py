"""What was read from a command or a file, and what of it is not modelled, as lines of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..estimates.bounds import deciding
from ..estimates.fit_verdict import UNSURE
from ..estimates.result import MemoryResult
from ..estimates.verdict_words import bound_words
from ..run.limits import BoundedLimit
from ..tools.reading.reading import Reading
from .headline import MOST_UNDECIDED
from .lines import DIM, WARN, WIDTH, Line, line, wrap_lines

MOST_LIMITS = 4


def reading_lines(
    reading: Reading, result: MemoryResult | None = None, width: int = WIDTH
) -> list[Line]:
    """The tool that was recognised, and what is not modelled."""
    lines = [line(read_words(reading, result), DIM)]
    return lines if result is None else [*lines, *limit_lines(result, width)]


def read_words(reading: Reading, result: MemoryResult | None = None) -> str:
    """What it was read as: how many keys were honoured, and how many take no memory. The release of
    its options is left out where that of the run is another.
    """
    other = result is not None and (
        result.versions or (result.run.get("inference") or {}).get("engine_version")
    )
    title = f"{reading.tool} {'' if other else reading.version}".rstrip()
    count = Counter(reading.keys.values())
    words = [f"{count['memory']} honoured"]
    if count["free"]:
        words.append(f"{count['free']} without effect on memory")
    if reading.limits:
        words.append(f"{len(reading.limits)} not modelled")
    return f"read as {title}: {', '.join(words)}" if reading.keys else f"read as {title}"


def limit_lines(result: MemoryResult, width: int = WIDTH) -> Iterator[Line]:
    """A line or two for each thing that is not modelled and that the verdict does not name; at most
    four of them.
    """
    limits = _others(result)
    for limit in limits[:MOST_LIMITS]:
        text = f"{limit} ({bound_words(limit)})"
        yield from wrap_lines("not modelled: ", text, WARN, width)
    if len(limits) > MOST_LIMITS:
        yield line(f"and {len(limits) - MOST_LIMITS} more; see --format json", WARN)


def _others(result: MemoryResult) -> Sequence[BoundedLimit]:
    named = deciding(result)[:MOST_UNDECIDED] if result.verdict == UNSURE else []
    return [one for one in result.limits if one not in named]
