"""A page for each framework: what it allocates and when, by the estimate of one run.

The figures of a page are what the calculator says of that run: the instants of a step, entries of
the ledger with their sources, what is left out, the defaults that were assumed. The sentences above
them are in `frameworks.toml`; each has a citation of this package.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from msgspec import Struct, convert

from gpu_mem_calculator.cli.main import PROG, main
from gpu_mem_calculator.estimates.calculator import STEP, Estimate, full_estimate
from gpu_mem_calculator.estimates.explain.explain import ExplainedEntry, explain
from gpu_mem_calculator.estimates.verdict_words import bound_words, total_bytes
from gpu_mem_calculator.ledger.frameworks import FRAMEWORKS
from gpu_mem_calculator.ledger.ledger import GPU
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.report.parts import KIND_TITLES, MARGIN, OUTSIDE, REST, parts
from gpu_mem_calculator.tools.read import read

FOLDER = "what-frameworks-allocate"
SMALL = 8 * MIB  # entries below it are summed up in one line
INSTANTS = 3  # that a line names
WIDTH = 76  # of a line of code


class Page(Struct, frozen=True):
    """A page.

    - `command`: the run that it shows; `others`: the same with a change, of which it has the answer
    - `does`: sentences on the framework, each with its source as the package cites it
    - `read`: the document with more; `framework`: its row in `ledger/frameworks.py`
    """

    title: str
    command: str
    read: str
    framework: str
    does: list[tuple[str, str]]
    others: list[str] = []


PAGES = convert(
    tomllib.loads((Path(__file__).parent / "frameworks.toml").read_text("utf-8")), dict[str, Page]
)


def pages() -> dict[str, str]:
    """Every page by its name, and the list of them."""
    links = [f"- [{row.title}]({name}.md)" for name, row in PAGES.items()]
    top = [
        "# What frameworks do with your memory",
        "",
        "One run of each framework: what it allocates, when, by which line of its source.",
        "The calculator makes the figures, when this site is built.",
        "",
        *links,
        "",
        "A rule names the release at which its line was read. The release that is estimated is in",
        "the answer; [releases](../releases.md) says which others there are.",
    ]
    made = {name: "\n".join(_lines(row)) + "\n" for name, row in PAGES.items()}
    return {
        f"{FOLDER}/{name}.md": text for name, text in (made | {"index": "\n".join(top)}).items()
    }


def _lines(row: Page) -> Iterator[str]:
    run, assumed = _run(row.command)
    found = full_estimate(read(run))
    framework = next(one for one in FRAMEWORKS if one.name == row.framework)
    yield from (f"# What {row.title} does with your memory", "")
    release = f"[{framework.name}]({framework.url}) {framework.version}"
    yield f"By the source of {release}, read on {framework.date}."
    yield f"More: [{row.read.split('#')[0].removesuffix('.md')}](../{row.read})."
    yield from ("", *(f"- {says}{f' (`{source}`)' * bool(source)}." for says, source in row.does))
    yield from ("", "The run:", "", *_wrapped(row.command), "", found.result.summary, "")
    yield from _instants(found)
    entries = sorted(explain(found).entries, key=lambda one: -_most(one))
    yield from _entries("What is allocated", [one for one in entries if one.place == GPU])
    yield from _entries("On the host", [one for one in entries if one.place != GPU])
    limits = (f"`{one.key}`: {one.why} ({bound_words(one)})" for one in found.result.limits)
    says = "What the estimate leaves out, and what that could change:"
    yield from _listed("What is not modelled", says, limits)
    others = (f"`{one}`<br>{_summary(one)}" for one in row.others)
    yield from _listed("With a change", "The same run otherwise:", others)
    yield from _listed("Worth knowing", "What the answer says besides:", found.result.warnings)
    says = "What the command leaves out, and what it then is:"
    every = dict.fromkeys((*assumed, *found.result.assumed))
    yield from _listed("Defaults that count", says, every)


def _wrapped(command: str) -> list[str]:
    """A command as lines of code, continued where it is long."""
    *lines, last = wrap(
        command, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [*(f"    {one} \\" for one in lines), f"    {last}"]


def _run(command: str) -> tuple[str | dict[str, Any], list[str]]:
    """What a command is read from, and what reading it assumed: of one of ours the run file that it
    makes, of another itself.
    """
    program, *words = shlex.split(command)
    if program != PROG:
        return command, []
    with redirect_stdout(StringIO()) as said:
        main([words[0], "--format", "json", *words[1:]])
    answer: dict[str, Any] = json.loads(said.getvalue())
    return answer["run"], answer.get("assumed", [])


def _summary(command: str) -> str:
    return full_estimate(read(_run(command)[0])).result.summary


def _listed(title: str, says: str, items: Iterable[str]) -> Iterator[str]:
    """A section with a list; nothing without items."""
    if lines := [f"- {one}" for one in items]:
        yield from (f"## {title}", "", says, "", *lines, "")


def _instants(found: Estimate) -> Iterator[str]:
    """The height of each instant of a step, by kind, and what the total has besides."""
    timeline = found.result.timeline
    if not timeline:
        return
    kinds = [kind for kind in KIND_TITLES if any(one["bytes"][kind] >= SMALL for one in timeline)]
    heads = ["instant", "all", *(KIND_TITLES[kind] for kind in kinds)]
    yield from ("## When", "", "Held on the GPU, GiB:", "")
    yield from (f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}")
    for one in timeline:
        sizes = [sum(one["bytes"].values()), *(one["bytes"][kind] for kind in kinds)]
        cells = (_gib(size) if size >= SMALL else "" for size in sizes)
        yield f"| {_cell(one['title'])} | {' | '.join(cells)} |"
    rest = {row.title: row.bytes for row in parts(found)}
    peak = int(found.ledger.peak(phases=STEP))
    more = [f"{_gib(peak)} at the peak"]
    more += [f"{_gib(rest[name])} {name}" for name in (OUTSIDE, REST, MARGIN) if rest.get(name)]
    total = _gib(total_bytes(found.result))
    yield from ("", f"The card must have {total} GiB: {' + '.join(more)}.", "")


def _entries(title: str, entries: list[ExplainedEntry]) -> Iterator[str]:
    """What is allocated, the largest first."""
    large = [one for one in entries if _most(one) >= SMALL]
    if not large:
        return
    yield from (f"## {title}", "")
    yield from ("| what | most, GiB | when | by which rule |", "|---|---:|---|---|")
    for one in large:
        yield f"| {one.name} | {_gib(_most(one))} | {_when(one)} | {_cell(_rule(one))} |"
    if small := entries[len(large) :]:
        name = f"{len(small)} of less than {SMALL // MIB} MiB"
        yield f"| {name} | {_gib(sum(map(_most, small)))} | | |"
    yield ""


def _most(one: ExplainedEntry) -> int:
    return int(one.bytes * max(one.alive.values(), default=1))


def _when(one: ExplainedEntry) -> str:
    names = [name for name in one.alive if "micro-batch" not in name]
    if one.always or not names:
        return "always"
    more = f"; and {len(names) - INSTANTS} more" if len(names) > INSTANTS else ""
    return _cell("; ".join(names[:INSTANTS]) + more)


def _rule(one: ExplainedEntry) -> str:
    """Its source; of a measurement the first part, on the card that was measured most."""
    first, rest, _ = one.source.partition(";")
    return f"{first}, …" if rest and first.startswith("measured:") else one.source


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
