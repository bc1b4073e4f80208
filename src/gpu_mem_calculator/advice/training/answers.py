"""Answers about a training run besides its memory: the longest sequence, and remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ...estimates.calculator import Estimate
from ...estimates.longest_sequence import longest_sequence

if TYPE_CHECKING:
    from .remedies import Remedy


class TrainingAnswers(Struct, frozen=True, kw_only=True):
    """The longest sequence that fits, None where none does or a record fixes it; and remedies."""

    longest_sequence: int | None = None
    remedies: list[Remedy] = []


def longest_length(estimate: Estimate) -> int | None:
    """The longest sequence that fits; None where none does, or a record or a generation fixes
    it.
    """
    run = estimate.resolved.run
    return None if run.record is not None or run.rollout is not None else longest_sequence(estimate)


def training_answers(estimate: Estimate) -> TrainingAnswers:
    """The answers for one estimate. A server's are elsewhere."""
    if estimate.served:
        return TrainingAnswers()
    longest = longest_length(estimate)
    if estimate.result.figures_fit:
        return TrainingAnswers(longest_sequence=longest)
    from .remedies import remedies

    return TrainingAnswers(longest_sequence=longest, remedies=remedies(estimate, longest))
