"""Plans for training: a question's space is searched, and the best set-ups are estimated in full.

A question for the most or the least of something becomes one for the fastest set-up. Where nothing
fits, the smallest changes of the question are found with which something would.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import to_builtins

from ..answers.plans import (
    INTERRUPTED,
    Plan,
    Plans,
    PlansSoFar,
    SearchedSpace,
    SmallestChange,
    pareto_front,
)
from ..answers.question import FASTEST, PlanQuestion
from .limits import plan_limits
from .reasons import explained, reasoned
from .search import Found
from .space import searched_axes
from .trials import Progress, Trials, searched, silent, try_best

PlansFound = Callable[[Plans], None]


def plan_training(
    question: PlanQuestion, progress: Progress | None = None, found: PlansFound | None = None
) -> Plans:
    """The set-ups that fit, fastest first, and the front of memory against time.

    - found: called with the plans so far, whenever a faster one is found
    """
    report, tried = progress or silent, list[Trials]()

    def tell() -> None:
        if found is not None:
            found(so_far(tried[-1]))

    def early(trials: Trials) -> None:
        tried.append(trials)
        tell()

    try:
        tried.append(_searched(question, report, early if found is not None else None))
        try_best(tried[-1], report, better=tell)
        report("explaining", 1.0)
        return answer(tried[-1])
    except KeyboardInterrupt:
        fitting = [trials for trials in tried if trials.fitting]
        if not fitting:
            raise
        raise PlansSoFar(so_far(fitting[-1])) from None


def _searched(
    question: PlanQuestion, report: Progress, early: Callable[[Trials], None] | None
) -> Trials:
    """The question, or the one that it becomes by its goal, with its space searched."""
    if question.goal == FASTEST:
        return searched(question, report, early)
    from .goals import at_goal

    return at_goal(question, report)


def answer(trials: Trials) -> Plans:
    """The plans of a question whose set-ups were tried."""
    plans, every = trials.plans(), trials.every
    explains = explained(plans, trials.found, every, trials.question.sequences)
    changes = [] if plans else _changes(trials)
    limits = [*_node_limit(trials.found), *plan_limits(plans, every, trials.left_out)]
    return _plans(trials, explains, changes, limits)


def _node_limit(found: Found) -> list[str]:
    """A sentence where the memory of a node leaves out set-ups that fit on their cards."""
    out = found.on_cards - found.feasible
    which = f"{out:,} of {found.on_cards:,} set-ups that fit on their cards"
    return [f"{which} take more host RAM than a node has"] if out else []


def so_far(trials: Trials) -> Plans:
    """The plans that were found until now, without what each knob of the first one changes."""
    plans = trials.plans()
    if trials.whole:
        plans = reasoned(plans, trials.found)
    return _plans(trials, plans, [], [INTERRUPTED])


def _plans(
    trials: Trials, plans: list[Plan], changes: list[SmallestChange], limits: list[str]
) -> Plans:
    question, found = trials.question, trials.found
    return Plans(
        question=to_builtins(question),
        space=SearchedSpace(
            set_ups=found.set_ups,
            feasible=found.feasible,
            seconds=found.seconds,
            axes=searched_axes(trials.every),
        ),
        plans=plans,
        front=pareto_front(plans),
        if_nothing_fits=changes,
        limits=limits,
    )


def _changes(trials: Trials) -> list[SmallestChange]:
    from .changes import smallest_changes

    return smallest_changes(trials.question, trials.found)
