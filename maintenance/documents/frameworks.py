"""A page for each framework: what it allocates and when, by the estimate of one run.

Everything on a page is what the calculator says of that run: entries of the ledger with their
sources, the instants of a step, the defaults that were assumed.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from gpu_mem_calculator.cli.main import PROG, main
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.explain.explain import ExplainedEntry, explain
from gpu_mem_calculator.ledger.frameworks import FRAMEWORKS
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.tools.read import read

FOLDER = "what-frameworks-allocate"
SMALL = 8 * MIB  # entries below it are summed up in one line
INSTANTS = 3  # that a line names


class Page(Struct, frozen=True):
    """A page: its title, the run that it shows as a command, more to read, the framework."""

    title: str
    command: str
    read: str
    framework: str


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
        "The pages are made by the calculator itself.",
        "",
        *links,
    ]
    made = {name: "\n".join(_lines(row)) + "\n" for name, row in PAGES.items()}
    return {
        f"{FOLDER}/{name}.md": text for name, text in (made | {"index": "\n".join(top)}).items()
    }


def _lines(row: Page) -> Iterator[str]:
    found = full_estimate(read(_run(row.command)))
    framework = next(one for one in FRAMEWORKS if one.name == row.framework)
    yield from (f"# What {row.title} does with your memory", "")
    release = f"[{framework.name}]({framework.url}) {framework.version}"
    yield f"By the source of {release}, read on {framework.date}."
    yield f"More: [{row.read.split('#')[0].removesuffix('.md')}](../{row.read})."
    yield from ("", "The run:", "", f"    {row.command}", "", found.result.summary, "")
    yield from _instants(found)
    yield from _entries(found)
    yield from ("## Defaults that count", "")
    yield "What the command leaves out, and what it then is:"
    yield from ("", *(f"- {one}" for one in found.result.assumed))
    yield ""


def _run(command: str) -> str | dict[str, Any]:
    """What a command is read from: itself, or for one of ours the run file that it makes."""
    program, *words = shlex.split(command)
    if program != PROG:
        return command
    with redirect_stdout(StringIO()) as said:
        main([*words, "--format", "json"])
    run: dict[str, Any] = json.loads(said.getvalue())["run"]
    return run


def _instants(found: Estimate) -> Iterator[str]:
    """The height of each instant of a step."""
    timeline = found.result.timeline
    if not timeline:
        return
    yield from ("## When", "", "| instant | GiB |", "|---|---:|")
    for one in timeline:
        yield f"| {_cell(one['title'])} | {sum(one['bytes'].values()) / GIB:.2f} |"
    yield ""


def _entries(found: Estimate) -> Iterator[str]:
    """What is allocated, the largest first."""
    entries = sorted(explain(found).entries, key=lambda one: -_most(one))
    large = [one for one in entries if _most(one) >= SMALL]
    yield from ("## What is allocated", "")
    yield from ("| what | most, GiB | when | by which rule |", "|---|---:|---|---|")
    for one in large:
        yield f"| {one.name} | {_most(one) / GIB:.2f} | {_when(one)} | {_cell(one.source)} |"
    rest = sum(map(_most, entries[len(large) :]))
    yield f"| {len(entries) - len(large)} smaller ones | {rest / GIB:.2f} | | |"
    yield ""


def _most(one: ExplainedEntry) -> int:
    return int(one.bytes * max(one.alive.values(), default=1))


def _when(one: ExplainedEntry) -> str:
    names = [name for name in one.alive if "micro-batch" not in name]
    if one.always or not names:
        return "always"
    more = f", and {len(names) - INSTANTS} more" if len(names) > INSTANTS else ""
    return _cell(", ".join(names[:INSTANTS]) + more)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
