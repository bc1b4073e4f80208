"""The longest context with which a server meets the targets."""

from __future__ import annotations

from ..answers.serving_question import ServingQuestion
from .points import ServingPoint, meets, points_on
from .set_up import Lengths, ServedSetup, served_setup

GRAIN = 256  # tokens to which a context is rounded


def longest_context(
    question: ServingQuestion, served: ServedSetup, lengths: Lengths, gpus: int
) -> ServingPoint | None:
    """The point with the longest context, of those with the users asked for, else with one."""
    new, asked = lengths.new, _with_users(question)
    longest = served.estimate.resolved.run.arch.max_seq_len
    low, high = lengths.context // GRAIN, max(lengths.context, longest) // GRAIN
    if not _point(asked, served, lengths, gpus):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if _point(asked, served, Lengths(middle * GRAIN - new, new), gpus):
            low = middle
        else:
            high = middle - 1
    while low * GRAIN > lengths.context:  # its memory, started with this context
        tried = Lengths(low * GRAIN - new, new)
        started = served_setup(asked, served.setup, tried)
        found = started and _point(asked, started, tried, gpus)
        if found:
            return found
        low = min(low - 1, low * 15 // 16)
    return _point(asked, served, lengths, gpus)


def _with_users(question: ServingQuestion) -> ServingQuestion:
    from msgspec.structs import replace

    return question if question.users else replace(question, users=1)


def _point(
    question: ServingQuestion, served: ServedSetup, lengths: Lengths, gpus: int
) -> ServingPoint | None:
    points = points_on(question, served, lengths, gpus)
    return next((one for one in points if meets(question, one)), None)
