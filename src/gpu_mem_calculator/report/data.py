"""A result as plain data, with exact bytes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from ..advice.one_change import pasted_line
from ..estimates.calculator import Estimate, full_estimate
from ..estimates.verdict_words import total_bytes
from ..runfile.read import with_settings
from .longest_sequence import failure_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..advice.serving.answers import Answers
    from ..advice.training.answers import TrainingAnswers
    from ..advice.training.remedies import Remedy
    from .remedy_lines import Commands


def training_data(
    estimate: Estimate, answers: TrainingAnswers, commands: Commands, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields of a result, its longest sequence, its remedies with exact figures, and notes."""
    rows = [
        _remedy_data(estimate, remedy, words)
        for remedy, words in zip(answers.remedies, commands.remedies, strict=True)
    ]
    return {
        **msgspec.to_builtins(estimate.result),
        "summary": pasted_line(estimate, answers.remedies),
        "longest_sequence": answers.longest_sequence,
        "remedies": rows,
        "notes": [*notes, *failure_words(estimate.result)],
    }


def _remedy_data(estimate: Estimate, remedy: Remedy, words: Sequence[str]) -> dict[str, Any]:
    """A remedy with what a card must have for it, and what that saves."""
    data = with_settings(estimate.result.run, remedy.settings)
    result = full_estimate(data).result
    needs = total_bytes(result)
    return {
        "changes": list(remedy.changes),
        "settings": list(remedy.settings),
        "command": shlex.join(["gpu-mem-calc", *words]),
        "needs_bytes": needs,
        "saves_bytes": total_bytes(estimate.result) - needs,
        "cost": remedy.cost,
        "verdict": result.verdict,
    }


def answers_data(estimate: Estimate, answers: Answers) -> dict[str, Any]:
    """The fields of a server's result and of its answers; infinite shares are null."""
    found = msgspec.to_builtins(answers)
    found["matrix"]["shares"] = [
        [share if share is not None and share < 1e9 else None for share in row]
        for row in found["matrix"]["shares"]
    ]
    line = pasted_line(estimate, answers.remedies)
    return {**msgspec.to_builtins(estimate.result), "summary": line, **found}
