"""Plans for training: a question's space is searched, and the best set-ups are estimated in full.

A question for the most or the least of something becomes one for the fastest set-up. Where nothing
fits, the smallest changes of the question are found with which something would.
"""

from __future__ import annotations

from msgspec import to_builtins

from ..answers.plans import Plans, SearchedSpace, SmallestChange, pareto_front
from ..answers.question import FASTEST, PlanQuestion
from .limits import plan_limits
from .reasons import explained
from .space import searched_axes
from .trials import Progress, Trials, searched, silent, try_best


def plan_training(question: PlanQuestion, progress: Progress | None = None) -> Plans:
    """The set-ups that fit, fastest first, and the front of memory against time."""
    report = progress or silent
    trials = _searched(question, report)
    try_best(trials, report)
    return answer(trials)


def _searched(question: PlanQuestion, report: Progress) -> Trials:
    """The question, or the one that it becomes by its goal, with its space searched."""
    if question.goal == FASTEST:
        return searched(question, report)
    from .goals import at_goal

    return at_goal(question, report)


def answer(trials: Trials) -> Plans:
    """The plans of a question whose set-ups were tried."""
    question, every, found = trials.question, trials.every, trials.found
    plans = trials.plans()
    return Plans(
        question=to_builtins(question),
        space=SearchedSpace(
            set_ups=found.set_ups,
            feasible=found.feasible,
            seconds=found.seconds,
            axes=searched_axes(every),
        ),
        plans=explained(plans, found, every, question.sequences),
        front=pareto_front(plans),
        if_nothing_fits=[] if plans else _changes(trials),
        limits=plan_limits(plans, every, trials.left_out),
    )


def _changes(trials: Trials) -> list[SmallestChange]:
    from .changes import smallest_changes

    return smallest_changes(trials.question, trials.found)
