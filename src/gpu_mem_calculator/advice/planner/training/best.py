"""Plans for training: a question's space is searched, and the best set-ups are estimated in full.

A question for the most or the least of something becomes one for the fastest set-up. Where nothing
fits, the smallest changes of the question are found with which something would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from ....runfile.text.errors import InputError
from ....training.knob import IMPLEMENTATION, LOSS
from ..answers.plans import Plan, Plans, SearchedSpace, SmallestChange, pareto_front
from ..answers.question import FASTEST, PlanQuestion
from .full import full_plan, tried_run
from .limits import plan_limits
from .reasons import explained
from .search import Found, SetUp, named_settings, search
from .space import base_file, searched_axes, structures
from .structures import run_file

IN_FULL = 20  # set-ups that are estimated in full, besides those of the front
STEP = 0.05  # of the memory, between two set-ups of the front
MOST_TRIED = 60  # set-ups that are estimated in full to find as many that fit
KERNELS = (LOSS, IMPLEMENTATION)
Progress = Callable[[str, float], None]  # what is done, and which part of it is


def plan_training(question: PlanQuestion, progress: Progress | None = None) -> Plans:
    """The answer to a question about training."""
    if question.goal != FASTEST:
        from .goals import with_goal

        question = with_goal(question, fits)
    return fastest(question, progress)


def fits(question: PlanQuestion) -> bool:
    """Whether a set-up of a question fits, with replay and margin."""
    try:
        found = search(list(structures(question)), question.sequences)
        trials = Trials(question)
        try_best(trials, found, lambda text, part: None, wanted=1)
        return bool(trials.fitting)
    except InputError:
        return False


def fastest(question: PlanQuestion, progress: Progress | None = None) -> Plans:
    """The set-ups that fit, fastest first, and the front of memory against time."""
    report = progress or (lambda text, part: None)
    refused: list[str] = []
    every = list(structures(question, refused))
    if not every:
        raise InputError(nothing_possible(question, refused))
    batch = question.sequences
    found = search(every, batch, lambda done: report("searching", done / len(every)))
    trials = Trials(question)
    try_best(trials, found, report)
    plans = trials.plans()
    return Plans(
        question=to_builtins(question),
        space=SearchedSpace(
            set_ups=found.set_ups,
            feasible=found.feasible,
            seconds=found.seconds,
            axes=searched_axes(every),
        ),
        plans=explained(plans, found, every, batch),
        front=pareto_front(plans),
        if_nothing_fits=[] if plans else _changes(question, found),
        limits=plan_limits(plans, every, trials.left_out),
    )


def _changes(question: PlanQuestion, found: Found) -> list[SmallestChange]:
    from .changes import smallest_changes

    return smallest_changes(question, found)


def nothing_possible(question: PlanQuestion, refused: list[str]) -> str:
    """Why no set-up is possible: what refused each, else that no sizes make up GPUs and batch."""
    if refused:
        return f"no set-up is possible: {refused[0]}"
    gpus, batch = int(question.hardware["num_gpus"]), question.sequences
    below, above = batch // gpus * gpus, -(-batch // gpus) * gpus
    near = f"{below} or {above}" if below else str(above)
    fix = f"try --global-batch {near}" if batch % gpus else "try fewer --fix, or other --gpus"
    return f"no set-up is possible: no sizes make up {gpus} GPUs and {batch} sequences; {fix}"


class Trials:
    """The set-ups of a question that were replayed, each once.

    - fitting: plans of those that fit, in the order of the trials
    - left_out: why set-ups that the search accepted are refused after all
    """

    def __init__(self, question: PlanQuestion) -> None:
        self.question, self.base = question, base_file(question)
        self.fitting: list[Plan] = []
        self.left_out: list[str] = []
        self._seen: set[str] = set()
        self._shown: set[str] = set()

    @property
    def number(self) -> int:
        """How many were tried."""
        return len(self._seen)

    def add(self, set_up: SetUp) -> None:
        """Try a set-up, unless one that differs in its kernels alone fits."""
        settings = named_settings(set_up)
        name, shown = str(settings), _without_kernels(settings)
        if name in self._seen or shown in self._shown:
            return
        self._seen.add(name)
        sizes, chosen = set_up.sizes, set_up.structure.settings
        run = run_file(self.base, chosen, sizes, self.question.sequences)
        try:
            tried = tried_run(run, settings)
        except InputError as error:
            self.left_out.append(error.problems[0])
            return
        if tried.fits:
            price, tokens = self.question.price, self.question.tokens
            self.fitting.append(full_plan(tried, price=price, tokens=tokens))
            self._shown.add(shown)

    def plans(self) -> list[Plan]:
        """Those that fit, fastest first."""
        plans = sorted(
            self.fitting, key=lambda plan: (plan.step_seconds.estimate, plan.needs_bytes)
        )
        return [replace(plan, rank=rank) for rank, plan in enumerate(plans, 1)]


def try_best(trials: Trials, found: Found, report: Progress, wanted: int = 0) -> None:
    """Try the fastest set-ups until enough fit with replay and margin, and those of the front.

    `wanted`: only as many, and those of the front only where no faster one fits.
    """
    order = sorted(found.kept, key=lambda one: (one.seconds, one.total_bytes))
    count = wanted or max(IN_FULL, trials.question.top)
    for set_up in order:
        if len(trials.fitting) >= count or trials.number >= MOST_TRIED:
            break
        trials.add(set_up)
        report("estimating in full", len(trials.fitting) / count)
    for set_up in [] if wanted and trials.fitting else ledger_front(order):
        trials.add(set_up)


def _without_kernels(settings: Mapping[str, Any]) -> str:
    """What a set-up is called without its kernels: of those that differ in nothing else, the
    fastest that fits is shown.
    """
    return str({key: value for key, value in settings.items() if key not in KERNELS})


def ledger_front(order: Iterable[SetUp]) -> list[SetUp]:
    """Of set-ups sorted by time, those that take less memory than every faster one.

    Each takes less than the one before by a few percent at least (`STEP`).
    """
    front: list[SetUp] = []
    for set_up in order:
        if not front or set_up.total_bytes < front[-1].total_bytes * (1 - STEP):
            front.append(set_up)
    return front
