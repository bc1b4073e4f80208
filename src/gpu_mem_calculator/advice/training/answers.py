"""Answers about a training run besides its memory: the longest sequence, and remedies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ...estimates.calculator import Estimate
from ...estimates.longest_sequence import longest_sequence

if TYPE_CHECKING:
    from .remedies import Remedy

OTHER_TOOLS, LONGEST, REMEDIES = (
    "what other tools take",
    "the longest sequence that fits",
    "changes with which it fits",
)
"""What is looked for, in this order; the first is not among the answers, but shown with them."""


class TrainingAnswers(Struct, frozen=True, kw_only=True):
    """The longest sequence that fits, None where none does or a record fixes it; and remedies.

    `sought` is what is still looked for, "" where everything is found.
    """

    longest_sequence: int | None = None
    remedies: list[Remedy] = []
    sought: str = ""


Report: TypeAlias = Callable[[TrainingAnswers], None]


def longest_length(estimate: Estimate) -> int | None:
    """The longest sequence that fits; None where none does, or a record or a generation fixes
    it.
    """
    run = estimate.resolved.run
    return None if run.record is not None or run.rollout is not None else longest_sequence(estimate)


def training_answers(estimate: Estimate, report: Report | None = None) -> TrainingAnswers:
    """The answers for one estimate. A server's are elsewhere. `report` gets what is found so far,
    each time that there is more.
    """
    if estimate.served:
        return TrainingAnswers()
    report = report or (lambda _: None)
    report(TrainingAnswers(sought=LONGEST))
    longest = longest_length(estimate)
    if estimate.result.figures_fit:
        return TrainingAnswers(longest_sequence=longest)
    from .remedies import remedies

    so_far = TrainingAnswers(longest_sequence=longest, sought=REMEDIES)
    report(so_far)
    found = remedies(estimate, longest, lambda some: report(replace(so_far, remedies=some)))
    return TrainingAnswers(longest_sequence=longest, remedies=found)
