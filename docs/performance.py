"""Writes performance.md: how long the standard questions take, by version, beside their aims.

python docs/performance.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import instructions, speed
from benchmarks.questions import IN_C, IN_PYTHON, MOST_MIB, QUESTIONS

TARGET = Path(__file__).with_name("performance.md")
Cell = float | str  # a string where it was not measured
PAGE = """\
# Performance

How long a command takes, as a multiple of `python -c pass`: both are CPU times of whole processes,
user and system, measured in one run on one machine. 1 is a process that does nothing. A busy or a
slow machine slows both, so the ratio hardly depends on it. Modules are compiled, and the least of a
few runs counts.

The replay of the allocator runs in C where a library was built, and in Python elsewhere.
`gpu-mem-calc --version` says which; `GPU_MEM_CALC_REPLAY=python` leaves the library out. Each cell
is "in C / in Python".

## Standard questions

{times}

A dash was not measured: version 0.9.0 had no replay in C. C1 is `{checked}`.

## Peak memory

In MiB, the higher of both replays. The aim is under {most} for each.

{memory}

## Instructions

The same ratio in instructions of the processor, which a busy machine does not change; counted by
valgrind with Python {python}. `make proof` counts them again and fails where a question takes a
tenth more than here.

{counts}

## Benchmarks

`make bench` runs all of them. Each prints ratios to a reference that it measures in the same run,
with the aim beside it.

| program | measures | reference |
|---|---|---|
| `-m benchmarks.speed` | the questions above; `--store VERSION` adds a column | `python -c pass` |
| `-m benchmarks.instructions` | their instructions; `--store` writes them | `python -c pass` |
| `-m benchmarks.estimates` | estimates a second in one process | |
| `benchmarks/replay.py` | the replay of recorded streams, in Python and in C | adding up sizes |
| `benchmarks/stream.py` | an estimate's own stream: writing, replay, least cap | adding up sizes |
| `benchmarks/serving.py` | a server's answer, and a table of users and contexts | one estimate |
| `benchmarks/plan.py` | set-ups a second of a plan's search | the same one by one |
| `-m benchmarks.web` | requests a second of the service | a bare Starlette route |
| `-m benchmarks.visitors` | a verdict for many visitors, and beside a plan; Cancel | one visitor |
| `-m benchmarks.soak` | memory and errors of the service over an hour | |
| `-m benchmarks.releases` | reading the user's releases out of 300 packages | `python -c pass` |
| `-m benchmarks.page` | from a slider's move to the frame that shows it | a bare round trip |
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; all columns but the first are figures."""
    names = list(head)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value: Cell | None) -> str:
    """A ratio with one digit after the point up to a hundred."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def named(words: str) -> str:
    """A question; the README's command has a short name."""
    return "C1" if words.startswith("check ") else f"`{words}`"


def times(history: dict[str, dict[str, dict[str, Cell]]]) -> Iterator[list[str]]:
    """The ratios of each question: the aims, then each version."""
    for one in QUESTIONS:
        rows = [found.get(one.words, {}) for found in history.values()]
        cells = [f"{figure(row.get(IN_C))} / {figure(row.get(IN_PYTHON))}" for row in rows]
        yield [named(one.words), f"{one.aims[IN_C]:,} / {one.aims[IN_PYTHON]:,}", *cells]


def memory(history: dict[str, dict[str, dict[str, Cell]]]) -> Iterator[list[str]]:
    """The peak memory of each question by version."""
    for one in QUESTIONS:
        rows = [found.get(one.words, {}) for found in history.values()]
        yield [named(one.words), *(str(row.get("mib", "-")) for row in rows)]


def page() -> str:
    """The whole page."""
    history = json.loads(speed.HISTORY.read_text("utf-8"))
    counted = json.loads(instructions.STORED.read_text("utf-8"))
    counts = counted["ratios"]
    [checked] = [one.words for one in QUESTIONS if one.words.startswith("check ")]
    return PAGE.format(
        times=table(["question", "aim", *history], times(history)),
        memory=table(["question", *history], memory(history)),
        counts=table(
            ["question", "in C", "in Python"],
            (
                [named(words), figure(counts[IN_C][words]), figure(counts[IN_PYTHON][words])]
                for words in instructions.COUNTED
            ),
        ),
        checked=checked,
        most=MOST_MIB,
        python=counted["python"],
    )


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
