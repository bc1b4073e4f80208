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
    SoFar,
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
    question: PlanQuestion,
    progress: Progress | None = None,
    found: PlansFound | None = None,
    changed: Callable[[SoFar], None] | None = None,
) -> Plans:
    """The set-ups that fit, fastest first, and the front of memory against time.

    - found: called with the plans so far, whenever a faster one is found
    - changed: called after the search and after each replay with a function that gives the plans
      so far, those that wait for their replay among them
    """
    report, tried = progress or silent, list[Trials]()

    def tell(plan: Plan | None) -> None:
        if found is not None and plan is not None and plan is tried[-1].fastest:
            found(so_far(tried[-1]))
        if changed is not None:
            changed(lambda: so_far(tried[-1], waiting=True))

    def early(trials: Trials) -> None:
        tried.append(trials)
        tell(trials.fastest)

    wants = found is not None or changed is not None
    try:
        tried.append(_searched(question, report, early if wants else None))
        try_best(tried[-1], report, tried=tell if wants else None)
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


def so_far(trials: Trials, *, waiting: bool = False) -> Plans:
    """The plans that were found until now, without what each knob of the first one changes.

    waiting: also those that are not replayed yet
    """
    plans = trials.with_waiting() if waiting else trials.plans()
    if trials.whole:
        plans = reasoned(plans, trials.found)
    return _plans(trials, plans, [], [] if waiting else [INTERRUPTED])


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
