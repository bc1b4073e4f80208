"""The runs of changed configurations as a comment on a pull request, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ... import __version__
from ...estimates.changed_runs import ChangedRun, Changes, Outcome
from ...estimates.fit_verdict import FITS
from ..lines import gib
from .lines import passed_words

MARKER = "<!-- gpu-mem-calculator -->"  # by which a comment is found again, and updated
MOST_LETTERS = 60_000  # a forge takes 65,536 in one comment
CUT = "\n\nThe rest is left out: a comment has a limit. The job's log has all of it.\n"


def comment(changes: Changes) -> str:
    """One comment: a table of the runs, then what would make those fit that do not."""
    text = "\n".join(_lines(changes)) + "\n"
    return text if len(text) <= MOST_LETTERS else text[: text.rindex("\n", 0, MOST_LETTERS)] + CUT


def _lines(changes: Changes) -> Iterator[str]:
    yield MARKER
    yield f"### GPU memory: {changes.sentence}"
    yield ""
    if changes.runs:
        yield "| run | GiB per GPU before | after | card | verdict |"
        yield "|---|---:|---:|---:|---|"
        yield from map(_row, changes.runs)
        yield ""
    for run in changes.runs:
        if run.outcome.verdict != FITS:
            yield f"**{_code(run.title)}**: {_plain(run.outcome.sentence)}"
            yield ""
            yield from (f"- {_plain(one.words)}: {_code(one.options)}" for one in run.remedies)
            yield from [""] * bool(run.remedies)
    if changes.passed_over:
        yield f"<details><summary>{passed_words(changes)}</summary>\n"
        yield from (f"- {_code(path)}: {_plain(why)}" for path, why in changes.passed_over.items())
        yield "\n</details>\n"
    yield f"Compared with {_code(changes.base[:12])} by gpu-mem-calc {__version__}."


def _row(run: ChangedRun) -> str:
    has = run.after.has_bytes if run.after else None
    cells = (
        _code(run.title),
        _figure(run.before, "new"),
        _figure(run.after, "removed"),
        "" if has is None else gib(has),
        _verdict(run),
    )
    return f"| {' | '.join(cells)} |"


def _figure(found: Outcome | None, missing: str) -> str:
    if found is None:
        return missing
    return "unknown" if found.takes_bytes is None else gib(found.takes_bytes)


def _verdict(run: ChangedRun) -> str:
    if run.after is None:
        return "removed"
    words = run.after.words
    changed = run.before is not None and run.before.words != words
    word = words if run.after.verdict == FITS else f"**{words}**"
    return f"{word}, before: {run.before.words}" if changed and run.before else word


def _code(text: str) -> str:
    """A text in which nothing is markup, in the letters of code."""
    plain = re.sub(r"[`|\s]+", " ", text).strip()
    return f"`{plain}`"


def _plain(text: str) -> str:
    """A text in which nothing is markup, a link or somebody's name."""
    plain = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", " ".join(text.split()))
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("@", "@\u200b").replace("://", ":\u200b//")
