"""A question for the most or the least of something becomes one for the fastest set-up.

Its ladder has the questions of growing GPUs, sequences, batches or models. The least bytes of any
set-up by its ledger grow or fall along it, so bisection finds where they first or last fit; the
search of a question stops at the first set-up that does. Replays decide from there on, one question
after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from .... import catalog
from ....runfile.config import ModelConfig
from ....runfile.find_model.model_source import find_model
from ....runfile.text.errors import InputError
from ..answers.question import (
    FASTEST,
    FEWEST_GPUS,
    LARGEST_BATCH,
    LARGEST_MODEL,
    LONGEST_CONTEXT,
    PlanQuestion,
)
from .axes import MOST_BATCH
from .search import search
from .space import structures
from .trials import Progress, Trials, searched, try_best

GPU_COUNTS = (1, 2, 4, 8, *(8 << n for n in range(1, 12)))  # up to 16,384
CONTEXTS = tuple(1024 << n for n in range(11))  # up to 1 M tokens
BATCHES = tuple(1 << n for n in range(MOST_BATCH.bit_length()))  # micro-batches of one GPU
EIGHTHS = range(8, 16)  # of the longest sequence that fits, up to twice as long


def at_goal(question: PlanQuestion, report: Progress) -> Trials:
    """The question whose answer is the fastest set-up at the goal, with its space searched."""
    plain = replace(question, goal=FASTEST)
    if question.goal == FEWEST_GPUS:
        return _first_that_fits([_on_gpus(plain, count) for count in GPU_COUNTS], report)
    if question.goal == LONGEST_CONTEXT:
        longer = _last_that_fits([replace(plain, seq_len=one) for one in CONTEXTS], report)
        seq = longer.question.seq_len or CONTEXTS[0]
        finer = [replace(plain, seq_len=seq * eighths // 8) for eighths in EIGHTHS]
        return _last_that_fits(finer, report, longer)
    if question.goal == LARGEST_BATCH:
        gpus = int(question.hardware["num_gpus"])
        larger = [
            replace(
                plain,
                global_batch=gpus * size,
                fix={**plain.fix, "training.gradient_accumulation_steps": 1},
            )
            for size in BATCHES
        ]
        return _last_that_fits(larger, report)
    assert question.goal == LARGEST_MODEL
    return _last_that_fits([replace(plain, model={"name": n}) for n in _models()], report)


def _on_gpus(question: PlanQuestion, count: int) -> PlanQuestion:
    batch = max(question.global_batch or count, count)
    return replace(
        question,
        hardware={**question.hardware, "num_gpus": count},
        global_batch=-(-batch // count) * count,
    )


def _models() -> list[str]:
    """Presets that can be trained, smallest first."""
    rows = [row for row in catalog.rows("index") if row.get("num_parameters")]
    names = [row["name"] for row in sorted(rows, key=lambda row: int(row["num_parameters"]))]
    return [name for name in names if find_model(ModelConfig(name=name)).arch.trains]


def fits_by_ledger(question: PlanQuestion) -> bool:
    """Whether some set-up fits by its ledger; those after the first that does are not searched."""
    try:
        return any(search([one], question.sequences).feasible for one in structures(question))
    except InputError:
        return False


def fitting(question: PlanQuestion, report: Progress) -> Trials | None:
    """The searched question with a set-up that fits in its replay; None where none does."""
    try:
        trials = searched(question, report)
    except InputError:
        return None
    try_best(trials, report, wanted=1)
    return trials if trials.fitting else None


def _first_that_fits(questions: Sequence[PlanQuestion], report: Progress) -> Trials:
    """The first question of a growing ladder that fits; where one fits by its ledger, later ones
    do as well.
    """
    low, high = -1, len(questions)
    while high - low > 1:
        middle = (low + high) // 2
        report("looking for the fewest", 1 - (high - low) / len(questions))
        low, high = (low, middle) if fits_by_ledger(questions[middle]) else (middle, high)
    found = _first_fitting(questions[high:], report)
    if found is None:
        raise InputError(f"no number of GPUs up to {GPU_COUNTS[-1]:,} fits; try a larger card")
    return found


def _last_that_fits(
    questions: Sequence[PlanQuestion], report: Progress, first: Trials | None = None
) -> Trials:
    """The last question of a ladder that fits, or its first one; where one does not fit by its
    ledger, later ones do not either. `first`: the first question's, where it is known.
    """
    low, high = 0, len(questions)
    while high - low > 1:
        middle = (low + high) // 2
        report("looking for the most", 1 - (high - low) / len(questions))
        low, high = (middle, high) if fits_by_ledger(questions[middle]) else (low, middle)
    found = _first_fitting(questions[low:0:-1], report)
    return found or first or searched(questions[0], report)


def _first_fitting(questions: Iterable[PlanQuestion], report: Progress) -> Trials | None:
    """The first of some questions that fits in its replay."""
    return next((found for one in questions if (found := fitting(one, report))), None)
