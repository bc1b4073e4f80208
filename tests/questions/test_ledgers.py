"""Questions by the ledger alone: arrays of set-ups take what single runs take."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training.axes import COUNT_EMBEDDING
from gpu_mem_calculator.advice.planner.training.search import evaluate
from gpu_mem_calculator.advice.planner.training.space import structures
from tests.questions.laws import Checks
from tests.questions.ledgers import ARRAYS, array_laws, ask_many, single
from tests.questions.tally import lines

LAWS = "an array takes what one run takes"


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma2-2b", "qwen3-0.6b"])
def test_an_array_of_a_model_with_windows_takes_what_one_run_takes(name: str) -> None:
    """Layers of equal weights whose windows alternate are not one group of all layers."""
    hardware = {"gpu": "h200", "num_gpus": 8}
    asked = PlanQuestion(
        model={"name": name}, hardware=hardware, global_batch=16, engines=("megatron_lm",)
    )
    rng, checks = Random(1), Checks()
    structure = next(structures(asked))
    arrays = evaluate(structure, asked.sequences)
    array_laws(checks, arrays)
    for _ in range(3):
        single(rng, checks, asked, structure, arrays)
    assert checks.counts[LAWS] == 3
    assert not checks.broken


@pytest.mark.parametrize("name", ["deepseek-moe-16b"])
def test_chunks_of_unequal_layers_whose_ends_count_are_left_out(name: str) -> None:
    """28 layers, the first one dense, with embedding and loss as 30: 2 stages of 3 chunks."""
    asked = PlanQuestion(
        model={"name": name},
        hardware={"gpu": "h200", "num_gpus": 2},
        global_batch=8,
        engines=("megatron_lm",),
        fix={COUNT_EMBEDDING: True, "parallelism.sequence_parallel": False},
    )
    for structure in islice(structures(asked), 2):
        assert all(chunks == 1 for _, chunks, _ in structure.pipes)
        checks = Checks()
        array_laws(checks, evaluate(structure, asked.sequences))
        assert not checks.broken


def test_arrays_of_set_ups_keep_the_laws() -> None:
    """A few hundred set-ups."""
    tally = ask_many(seed=3, count=200)
    assert tally.ended[ARRAYS]["answered"] > 100
    assert not {**tally.failures}.get(LAWS), "\n".join(lines(tally))


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(20, 24))
def test_many_arrays_of_set_ups_keep_the_laws(seed: int) -> None:
    """Some ten thousand."""
    tally = ask_many(seed=seed, count=20_000)
    assert not tally.broken, "\n".join(lines(tally))
