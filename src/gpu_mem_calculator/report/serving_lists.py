"""The answers to --fewest-gpus and --largest-model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..core.calculator import Estimate
from ..core.serving_changes import ServingChange
from .lines import BAD, BOLD, DIM, Line, command, gib, line, wrap_lines
from .serving import headline
from .serving_words import users_words


def fewest_lines(
    estimate: Estimate, change: ServingChange | None, started: Estimate | None
) -> Iterator[Line]:
    """The fewest GPUs on which a server starts: what was asked, the answer, its two commands."""
    yield from headline(estimate)
    yield line()
    if change is None or started is None:
        yield line("no number of these GPUs is enough; use GPUs with more memory", BAD)
        return
    yield from _change_lines(change)
    serving = started.result.serving
    if serving is not None and serving.command:
        yield from command("start: ", shlex.split(serving.command))


def largest_lines(setup: str, changes: Sequence[ServingChange]) -> Iterator[Line]:
    """The largest models that the GPUs serve, each with its command; `setup` names the GPUs."""
    yield from wrap_lines("", f"largest models for {setup}", BOLD)
    yield line()
    if not changes:
        yield line("no preset fits", BAD)
    for change in changes:
        yield from _change_lines(change)


def _change_lines(change: ServingChange) -> Iterator[Line]:
    gain = f"takes {gib(change.device_bytes)} GiB per GPU"
    if change.kv_tokens:
        gain = f"{users_words(change.users, change.context)}, {change.kv_tokens:,} in all"
    yield [(f"{change.title[:30]:<32}", BOLD), (gain, DIM)]
    yield from command("  ", shlex.split(change.command))
