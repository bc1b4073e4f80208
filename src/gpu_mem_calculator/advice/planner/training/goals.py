"""A question for the most or the least of something becomes one for the fastest set-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

GPU_COUNTS = (1, 2, 4, 8, *(8 << n for n in range(1, 12)))  # up to 16,384
CONTEXTS = tuple(1024 << n for n in range(11))  # up to 1 M tokens
BATCHES = tuple(1 << n for n in range(MOST_BATCH.bit_length()))  # micro-batches of one GPU
EIGHTHS = range(8, 16)  # of the longest sequence that fits, up to twice as long

Fits = Callable[[PlanQuestion], bool]


def with_goal(question: PlanQuestion, fits: Fits) -> PlanQuestion:
    """The question whose answer is the fastest set-up at the goal; `fits` decides for each."""
    plain = replace(question, goal=FASTEST)
    if question.goal == FEWEST_GPUS:
        return _first_that_fits([_on_gpus(plain, count) for count in GPU_COUNTS], fits)
    if question.goal == LONGEST_CONTEXT:
        longer = [replace(plain, seq_len=length) for length in CONTEXTS]
        found = _last_that_fits(longer, fits).seq_len or CONTEXTS[0]
        finer = [replace(plain, seq_len=found * eighths // 8) for eighths in EIGHTHS]
        return _last_that_fits(finer, fits)
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
        return _last_that_fits(larger, fits)
    assert question.goal == LARGEST_MODEL
    return _last_that_fits([replace(plain, model={"name": n}) for n in _models()], fits)


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


def _first_that_fits(questions: Sequence[PlanQuestion], fits: Fits) -> PlanQuestion:
    """The first question of a growing ladder that fits; later ones are taken to fit as well."""
    low, high = -1, len(questions)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(questions[middle]) else (middle, high)
    if high == len(questions):
        raise InputError(f"no number of GPUs up to {GPU_COUNTS[-1]:,} fits; try a larger card")
    return questions[high]


def _last_that_fits(questions: Sequence[PlanQuestion], fits: Fits) -> PlanQuestion:
    """The last question of a ladder that fits; later ones are taken not to fit."""
    low, high = 0, len(questions)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(questions[middle]) else (low, middle)
    return questions[low]
