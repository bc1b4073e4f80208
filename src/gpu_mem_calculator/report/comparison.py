"""Two estimates side by side: what each part takes, and which key made the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from ..advice.comparison import KeyDifference, cache_bytes, causes, limits_of_one, used_bytes
from ..estimates.calculator import Estimate
from ..estimates.fit_verdict import FITS, SHORT, UNSURE, WORDS
from ..estimates.verdict_words import verdict_line
from ..ledger.quoting import quoted
from ..ledger.units import gib
from .headline import STYLES
from .lines import BOLD, DIM, WARN, Line, line, wrap_lines
from .parts import parts
from .serving.parts import memory_parts

FIRST, SECOND = "A", "B"
DEFAULT = "its default"
TITLE, FIGURE = 44, 11
MOST_SHOWN = 8  # keys
RELEASE = "engine_version"
NAMES = ("gpu", "name")  # keys that may look like numbers
WORST = (SHORT, UNSURE, FITS)  # first
SAME = {FITS: "both fit", SHORT: "neither fits", UNSURE: "cannot tell whether either fits"}


class Compared(Struct, frozen=True, kw_only=True):
    """Two estimates with their names, and the keys that they have with other values."""

    names: tuple[str, str]
    first: Estimate
    second: Estimate
    causes: Sequence[KeyDifference]


def compared(names: tuple[str, str], first: Estimate, second: Estimate) -> Compared:
    """Two estimates, and what each different key makes by itself."""
    return Compared(names=names, first=first, second=second, causes=causes(first, second))


def comparison_lines(found: Compared) -> Iterator[Line]:
    """The difference in one line, the verdict on each, the parts, and the keys."""
    yield from wrap_lines("", difference(found), BOLD)
    for letter, name, one in zip((FIRST, SECOND), found.names, _both(found), strict=True):
        style = STYLES[one.result.verdict]
        yield from wrap_lines(f"{letter}  ", f"{name}: {verdict_line(one.result)}", style)
    yield line()
    yield line("GiB per GPU".ljust(TITLE) + _figures(FIRST, SECOND, f"{SECOND} - {FIRST}"), BOLD)
    for title, ours, theirs in part_rows(found):
        yield line(f"  {title}".ljust(TITLE) + _difference(ours, theirs))
    yield from _cause_lines(found)
    for limit in limits_of_one(found.first, found.second):
        yield from wrap_lines("not modelled in one of them: ", limit, WARN)


def summary(found: Compared) -> str:
    """Both in one line, and which takes more."""
    pairs = zip((FIRST, SECOND), _both(found), strict=True)
    sides = [f"{letter} {one.result.summary}" for letter, one in pairs]
    return "; ".join([*sides, f"{SECOND} {_more(found)}"])


def difference(found: Compared) -> str:
    """Which of the two takes more, by how much, and the verdict on each."""
    first, second = (one.result.verdict for one in _both(found))
    both = f"A: {WORDS[first]}, B: {WORDS[second]}"
    return f"B {_more(found)}; {SAME[first] if first == second else both}"


def _more(found: Compared) -> str:
    first, second = _both(found)
    beside = " beside its KV cache" if found.second.served and found.first.served else ""
    more = used_bytes(second) - used_bytes(first)
    text = gib(abs(more), 2)
    if text == "0.00":
        return f"takes as much as A{beside}"
    return f"takes {text} GiB {'more' if more > 0 else 'less'} than A{beside}"


def _both(found: Compared) -> tuple[Estimate, Estimate]:
    return found.first, found.second


def part_rows(found: Compared) -> Iterator[tuple[str, int | None, int | None]]:
    """Each part with its bytes in both; None where one of them does not have it."""
    ours, theirs = map(_parts, _both(found))
    for title in {**ours, **theirs}:
        yield title, ours.get(title), theirs.get(title)
    yield "total", sum(ours.values()), sum(theirs.values())
    if found.first.served and found.second.served:
        yield "  beside the KV cache", used_bytes(found.first), used_bytes(found.second)


def _parts(estimate: Estimate) -> dict[str, int]:
    rows: Sequence[Any] = memory_parts(estimate) if estimate.serves else parts(estimate)
    return {row.title: row.bytes for row in rows}


def _difference(ours: int | None, theirs: int | None) -> str:
    return _figures(*map(_gib, (ours, theirs)), signed((theirs or 0) - (ours or 0)))


def _figures(*texts: str) -> str:
    return "".join(text.rjust(FIGURE) for text in texts)


def _gib(size: int | None) -> str:
    return "-" if size is None else gib(size, 2)


def signed(size: int | None) -> str:
    """A difference in GiB with its sign."""
    if size is None:
        return "together"
    text = gib(abs(size), 2)
    return text if text == "0.00" else f"{'+' if size > 0 else '-'}{text}"


def _cause_lines(found: Compared) -> Iterator[Line]:
    """The keys that differ, with what each adds by itself."""
    if not found.causes:
        return
    cache = any(one.adds_cache_bytes is not None for one in found.causes)
    heads = ("", "alone", "KV cache") if cache else ("", "", "alone")
    yield line()
    yield line("what differs, each by itself in A".ljust(TITLE) + _figures(*heads), BOLD)
    for cause in found.causes[:MOST_SHOWN]:
        figures = ("", "", signed(cause.adds_bytes))
        if cache:
            figures = ("", signed(cause.adds_bytes), signed(cause.adds_cache_bytes))
        text = f"  {cause_words(cause)}"
        if len(text) >= TITLE + FIGURE:
            yield line(text)
            text = ""
        yield line(text.ljust(TITLE + FIGURE) + _figures(*figures[1:]))
    if len(found.causes) > MOST_SHOWN:
        rest = len(found.causes) - MOST_SHOWN
        yield line(f"  and {rest} more that add less; see --format json", DIM)


def cause_words(cause: KeyDifference) -> str:
    """`max_num_seqs 256 → 1,024`."""
    name = cause.key.partition(".")[2]
    if name == RELEASE:
        return f"the release itself, {cause.first} → {cause.second}"
    if name in NAMES:
        return f"{name} {cause.first} → {cause.second}"
    return "; ".join(_changes(name, cause.first, cause.second))


def _changes(name: str, first: Any, second: Any) -> Iterator[str]:
    """A value before and after; of two sections, the keys that differ."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in {**first, **second}:
            if first.get(key) != second.get(key):
                yield from _changes(f"{name}.{key}", first.get(key), second.get(key))
        return
    yield f"{name} {_value(first)} → {_value(second)}"


def _value(value: Any) -> str:
    if value is None:
        return DEFAULT
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else quoted(value).strip("'")


def comparison_data(found: Compared) -> dict[str, Any]:
    """The comparison as data."""
    rows = [
        {"part": title.strip(), "a_bytes": ours, "b_bytes": theirs}
        for title, ours, theirs in part_rows(found)
    ]
    sides = zip(("a", "b"), found.names, _both(found), strict=True)
    return {
        "verdict": min((one.result.verdict for one in _both(found)), key=WORST.index),
        "summary": summary(found),
        **{
            letter: {
                "name": name,
                "verdict": one.result.verdict,
                "used_bytes": used_bytes(one),
                "kv_pool_bytes": cache_bytes(one),
                "result": to_builtins(one.result),
            }
            for letter, name, one in sides
        },
        "parts": rows,
        "differences": [to_builtins(cause) for cause in found.causes],
    }
