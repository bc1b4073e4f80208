"""Evaluates every set-up of a server: by memory, then with every number of users.

The longest context with which a server meets the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ....models.arch.arch import Arch
from ....runfile.find_model.model_source import find_model
from ....tools.read import read
from ..answers.question import FEWEST_GPUS, LONGEST_CONTEXT
from ..answers.serving_question import ServingQuestion
from .points import MOST_GPUS, ServingPoint, fewest_servers, meets, order, points_on
from .set_up import Lengths, ServedSetup, lengths_of, served_setup
from .space import ServingSetup, serving_setups

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


Progress = Callable[[int, int, str], None]  # set-ups done, set-ups in all, what is evaluated


class ServingSearch(Struct, frozen=True, kw_only=True):
    """What a search has found: every point that fits, and how many set-ups there are."""

    question: ServingQuestion
    lengths: Lengths
    gpus: int
    setups: list[ServingSetup]
    served: list[ServedSetup]
    points: list[ServingPoint]


def begun_search(question: ServingQuestion) -> ServingSearch:
    """A search none of whose set-ups is evaluated."""
    arch = model_arch(question)
    gpus = question.hardware.get("num_gpus") or (MOST_GPUS if question.goal == FEWEST_GPUS else 1)
    return ServingSearch(
        question=question,
        lengths=lengths_of(question, arch.max_seq_len),
        gpus=gpus,
        setups=serving_setups(question, arch, gpus),
        served=[],
        points=[],
    )


def evaluate_servers(
    search: ServingSearch,
    progress: Progress | None = None,
    started: Callable[[], None] | None = None,
) -> None:
    """Evaluate every set-up: by memory, then with every number of users; `started` is called after
    each that starts.
    """
    for number, setup in enumerate(search.setups):
        if progress is not None:
            progress(number, len(search.setups), setup.engine)
        found = served_setup(search.question, setup, search.lengths)
        if found is not None:
            search.served.append(found)
            search.points.extend(set_up_points(search.question, found, search.lengths, search.gpus))
            if started is not None:
                started()


def set_up_points(
    question: ServingQuestion, served: ServedSetup, lengths: Lengths, gpus: int
) -> list[ServingPoint]:
    """The points of one set-up by the question's goal."""
    if question.goal == FEWEST_GPUS:
        fewest = fewest_servers(question, served, lengths, gpus)
        return [] if fewest is None else [fewest]
    if question.goal == LONGEST_CONTEXT:
        longest = longest_context(question, served, lengths, gpus)
        return [] if longest is None else [longest]
    return list(points_on(question, served, lengths, gpus))


def chosen_points(search: ServingSearch) -> list[ServingPoint]:
    """The best point of each set-up that meets the targets, best first."""
    question = search.question
    best: dict[int, ServingPoint] = {}
    for one in search.points:
        if not meets(question, one):
            continue
        now = best.get(id(one.served))
        if now is None or order(question, one) < order(question, now):
            best[id(one.served)] = one
    return sorted(best.values(), key=lambda one: order(question, one))


def model_arch(question: ServingQuestion) -> Arch:
    """The architecture of the question's model."""
    return find_model(read({"model": question.model}).file.model).arch


def searched_axes(setups: list[ServingSetup]) -> dict[str, list[Any]]:
    """Each axis with the values that were tried."""
    axes: dict[str, list[Any]] = {"engine": []}
    for one in setups:
        for key, value in {"engine": one.engine, **one.keys}.items():
            if value not in axes.setdefault(key, []):
                axes[key].append(value)
    return axes
