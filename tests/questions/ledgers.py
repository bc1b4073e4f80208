"""Very many questions by the ledger alone: Megatron-LM's set-ups as arrays, other runs one by one.

A structure of the planner's search has thousands of set-ups, whose bytes and seconds are computed
at once. A few of each are asked one by one, too, and must take the same bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.search import Evaluated, evaluate
from gpu_mem_calculator.advice.planner.training.space import base_file, structures
from gpu_mem_calculator.advice.planner.training.structures import Structure, run_file
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.questions.asking import (
    ANSWERED,
    LIMIT,
    REFUSED,
    TOO_LONG,
    Outcome,
    TooLongError,
    ask,
    limited,
)
from tests.questions.laws import Checks
from tests.questions.question import RUN, Question
from tests.questions.run_files import presets, program, serving, training
from tests.questions.tally import Tally

CARDS = ("h100", "h200", "a100", "b200", "4090", "l40s")
GPUS = (8, 16, 64, 256, 1024)
BATCHES = (64, 256, 1024, 4096)
SEQUENCES = (1024, 2048, 4096, 8192, 32_768, 131_072)
ARRAYS = "arrays, Megatron-LM"
MOST = 1.01  # with windows: an array has every kind of layer on every stage, in its transients
SINGLE = 25  # runs one by one after each question by arrays
STRUCTURES = 6  # of a question, drawn
DRAWS = {"training": training, "serving": serving, "program": program}


def ask_many(seed: int, count: int) -> Tally:
    """At least `count` questions of a seed."""
    tally, index = Tally(), 0
    while tally.questions < count:
        rng = Random(f"ledgers/{seed}/{index}")
        _arrays(rng, tally)
        for _ in range(SINGLE):
            name = rng.choice(tuple(DRAWS))
            single = Question(kind=RUN, name=f"ledger, {name}", run=DRAWS[name](rng))
            tally.count(single, ask(single))
        index += 1
    return tally


def question(rng: Random) -> PlanQuestion:
    """A model on many GPUs, under Megatron-LM."""
    gpus = rng.choice(GPUS)
    return PlanQuestion(
        model={"name": rng.choice(presets())},
        hardware={"gpu": rng.choice(CARDS), "num_gpus": gpus},
        global_batch=max(gpus, rng.choice(BATCHES)),
        seq_len=rng.choice(SEQUENCES),
        engines=("megatron_lm",),
    )


def _arrays(rng: Random, tally: Tally) -> None:
    """All set-ups of some structures of a question."""
    asked, begin = question(rng), time.perf_counter()
    text = Question(kind=RUN, name=ARRAYS, run={"question": _shown(asked)})
    try:
        with limited(LIMIT, [False]):
            for structure in _some(rng, structures(asked)):
                checks = Checks()
                arrays = evaluate(structure, asked.sequences)
                array_laws(checks, arrays)
                single(rng, checks, asked, structure, arrays)
                tally.count(text, _outcome(ANSWERED, begin, checks))
                _count_more(tally, len(arrays.total) - 1)
                begin = time.perf_counter()
    except InputError as error:
        tally.count(text, Outcome(ended=REFUSED, seconds=0.0, sentence=str(error)))
    except TooLongError:
        tally.count(text, _outcome(TOO_LONG, begin, Checks()))
    forget()


def _some(rng: Random, every: Iterator[Structure]) -> Iterator[Structure]:
    """Every other structure, a few of them."""
    return islice((one for one in every if rng.random() < 0.5), STRUCTURES)


def _outcome(ended: str, begin: float, checks: Checks) -> Outcome:
    return Outcome(
        ended=ended,
        seconds=time.perf_counter() - begin,
        counts=dict(checks.counts),
        broken=checks.broken,
    )


def _count_more(tally: Tally, more: int) -> None:
    """Count the set-ups of an array beyond its first."""
    if more > 0:
        tally.questions += more
        tally.ended[ARRAYS][ANSWERED] += more


def _shown(asked: PlanQuestion) -> dict[str, Any]:
    return {
        "model": dict(asked.model),
        "hardware": dict(asked.hardware),
        "global_batch": asked.global_batch,
        "seq_len": asked.seq_len,
    }


def array_laws(checks: Checks, arrays: Evaluated) -> None:
    """Of every valid set-up: bytes and seconds are positive and finite, the total has its parts."""
    import numpy as np

    count = len(arrays.total)
    for law, held in (
        ("no byte and no second is negative", (arrays.allocated > 0) & (arrays.seconds > 0)),
        ("every number is finite", np.isfinite(arrays.seconds)),
        ("no part is above its whole", arrays.total >= arrays.allocated),
    ):
        checks.hold(law, bool(held.all()), f"{np.flatnonzero(~held)[:3].tolist()}")
        checks.counts[law] += max(count - 1, 0)


def single(
    rng: Random, checks: Checks, asked: PlanQuestion, structure: Structure, arrays: Evaluated
) -> None:
    """One set-up of the array, asked by itself, takes the same bytes."""
    if not len(arrays.total):
        return
    place = rng.randrange(len(arrays.total))
    pipe, rank = int(arrays.pipes[place]), int(arrays.ranks[place])
    base = base_file(asked)
    base["hardware"]["num_gpus"] = structure.resolved.hardware.num_gpus
    file = run_file(base, structure.settings, structure.sizes(pipe, rank), asked.sequences)
    try:
        found = full_estimate(file, replay=False)
    except InputError as error:
        checks.hold("a set-up of the search is accepted", False, f"{error}: {file}"[:300])
        return
    checks.hold("a set-up of the search is accepted", True)
    highest = max(int(ledger.peak()) for ledger in found.ledgers)
    array = int(arrays.allocated[place])
    windows = bool(structure.resolved.run.arch.windows)
    same = highest <= array <= highest * (MOST if windows else 1)
    why = f"{array} for {highest}: {json.dumps(file)}"
    checks.hold("an array takes what one run takes", same, why)
