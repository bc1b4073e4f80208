"""Remedies and the longest sequence as a section of the HTML report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..advice.training.answers import TrainingAnswers
from ..advice.training.remedies import Remedy
from ..estimates.calculator import Estimate
from .html_tables import text
from .longest_sequence import longest_sequence_words
from .remedy_lines import Commands, remedy_words


def remedies_section(
    estimate: Estimate, answers: TrainingAnswers, commands: Commands | None = None
) -> str:
    """What makes the run fit, with a command for each; empty where nothing is to be said."""
    rows = commands.remedies if commands else [_file_words(one) for one in answers.remedies]
    items = "".join(
        f"<li><p>{text(remedy_words(remedy))}</p>"
        f"<pre><code>{text(shlex.join(['gpu-mem-calc', *words]))}</code></pre></li>"
        for remedy, words in zip(answers.remedies, rows, strict=True)
    )
    longest = longest_sequence_words(estimate, answers.longest_sequence)
    said = f"<p>{text(longest[:1].upper() + longest[1:])}.</p>" if longest else ""
    listed = f'<p>It fits with one of these:</p><ul class="remarks">{items}</ul>' if items else ""
    if not said and not listed:
        return ""
    head = "What makes it fit" if items else "Longest sequence"
    return (
        f'<section aria-labelledby="h-remedies"><h2 id="h-remedies">{head}</h2>'
        f"{said}{listed}</section>"
    )


def _file_words(remedy: Remedy) -> Sequence[str]:
    """The command for the run file that the report shows."""
    settings = (word for one in remedy.settings for word in ("--set", one))
    return ["calculate", "--config", "run.json", *settings]
