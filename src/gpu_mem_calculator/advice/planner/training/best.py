"""Plans for training: search the space, then estimate the best set-ups in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import to_builtins
from msgspec.structs import replace

from ....runfile.text.errors import InputError
from ....training.knob import IMPLEMENTATION, LOSS
from ..answers.front import pareto_front
from ..answers.plans import Plan, Plans, SearchedSpace
from ..answers.question import FASTEST, PlanQuestion
from .full import full_plan
from .goals import with_goal
from .limits import plan_limits
from .reasons import explained
from .search import Found, SetUp, named_settings, search
from .shortfall import smallest_changes
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
        question = with_goal(question, fits)
    return fastest(question, progress)


def fits(question: PlanQuestion) -> bool:
    """Whether a set-up of a question fits, with replay and margin."""
    try:
        found = search(list(structures(question)), question.sequences)
        return bool(best_plans(question, found, lambda text, part: None, wanted=1))
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
    left_out: list[str] = []
    plans = best_plans(question, found, report, left_out=left_out)
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
        if_nothing_fits=[] if plans else smallest_changes(question, found),
        limits=plan_limits(plans, every, left_out),
    )


def nothing_possible(question: PlanQuestion, refused: list[str]) -> str:
    """Why no set-up is possible: what refused each, else that no sizes make up GPUs and batch."""
    if refused:
        return f"no set-up is possible: {refused[0]}"
    gpus, batch = int(question.hardware["num_gpus"]), question.sequences
    below, above = batch // gpus * gpus, -(-batch // gpus) * gpus
    near = f"{below} or {above}" if below else str(above)
    fix = f"try --global-batch {near}" if batch % gpus else "try fewer --fix, or other --gpus"
    return f"no set-up is possible: no sizes make up {gpus} GPUs and {batch} sequences; {fix}"


def best_plans(
    question: PlanQuestion,
    found: Found,
    report: Progress,
    wanted: int = 0,
    left_out: list[str] | None = None,
) -> list[Plan]:
    """The fastest set-ups that fit with replay and margin, and those of the front, in full.

    `wanted`: only as many, and those of the front only where no faster one fits. `left_out` gets
    why a set-up that the search accepted is refused after all.
    """
    base, batch = base_file(question), question.sequences
    order = sorted(found.kept, key=lambda one: (one.seconds, one.total_bytes))
    count = wanted or max(IN_FULL, question.top)
    plans: list[Plan] = []
    shown: set[str] = set()
    tried = 0

    def add(set_up: SetUp) -> None:
        nonlocal tried
        if (name := _without_kernels(set_up)) in shown:
            return
        tried += 1
        run = run_file(base, set_up.structure.settings, set_up.sizes, batch)
        try:
            named = named_settings(set_up)
            plan = full_plan(run, named, price=question.price, tokens=question.tokens)
        except InputError as error:
            if left_out is not None:
                left_out.append(error.problems[0])
            return
        if plan.fits_on_gpu:
            plans.append(plan)
            shown.add(name)

    for set_up in order:
        if len(plans) >= count or tried >= MOST_TRIED:
            break
        add(set_up)
        report("estimating in full", len(plans) / count)
    for set_up in [] if wanted and plans else ledger_front(order):
        add(set_up)
    plans.sort(key=lambda plan: (plan.step_seconds.estimate, plan.needs_bytes))
    return [replace(plan, rank=rank) for rank, plan in enumerate(plans, 1)]


def _without_kernels(set_up: SetUp) -> str:
    """What a set-up is called without its kernels: of those that differ in nothing else, the
    fastest that fits is shown.
    """
    settings = named_settings(set_up)
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
