"""The answers to --fewest-gpus and --largest-model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from ...advice.serving.changes import ServingChange
from ...estimates.calculator import Estimate
from ..answer import LINES
from ..headline import headline, setup_words
from ..lines import BAD, BOLD, DIM, Line, command, gib, line, wrap_lines
from .words import start_lines, users_words


def fewest_lines(
    estimate: Estimate, change: ServingChange | None, started: Estimate | None
) -> Iterator[Line]:
    """The fewest GPUs on which a server starts: what was asked, the answer, its two commands."""
    yield from headline(started or estimate)
    yield line()
    if change is None or started is None:
        yield line("no number of these GPUs is enough; use GPUs with more memory", BAD)
        return
    yield from _change_lines(change)
    serving = started.result.serving
    if serving is not None and serving.command:
        yield from start_lines(serving.command)


def largest_lines(first: Estimate | None, changes: Sequence[ServingChange]) -> list[Line]:
    """The largest models that the GPUs serve, each with its command, on one screen; `first` is the
    server of the first.
    """
    if first is None:
        return [line("no preset fits", BAD)]
    same = len({change.context for change in changes}) == 1 < len(changes)
    context = f"{changes[0].context:,} tokens" if same else "each at its own context"
    asked = f"largest models, {context}: {', '.join(setup_words(first))}"
    lines = wrap_lines("", asked, BOLD)
    for change in changes:
        more = list(_change_lines(change))
        if len(lines) + len(more) > LINES:
            break
        lines += more
    return lines


def server_facts(server: Estimate) -> dict[str, Any]:
    """What the rows of these answers have in common: the engine, its version, and the card."""
    resolved = server.resolved
    return {
        "version": server.result.version,
        "engine": resolved.engine.name,
        "engine_version": resolved.run.options.get("engine_version"),
        "gpu": resolved.hardware.title,
    }


def _change_lines(change: ServingChange) -> Iterator[Line]:
    gain = f"takes {gib(change.device_bytes)} GiB per GPU"
    if change.kv_tokens:
        gain = f"{users_words(change.users, change.context)}, {change.kv_tokens:,} in all"
    yield [(f"{change.title[:30]:<32}", BOLD), (gain, DIM)]
    yield from command("  ", shlex.split(change.command))
