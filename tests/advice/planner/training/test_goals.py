"""The most or the least of something: bisection by the ledgers finds what trying all would find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.advice.planner.answers.question import (
    FASTEST,
    FEWEST_GPUS,
    LARGEST_BATCH,
    LARGEST_MODEL,
    LONGEST_CONTEXT,
    PlanQuestion,
)
from gpu_mem_calculator.advice.planner.training import goals
from gpu_mem_calculator.advice.planner.training.trials import silent
from gpu_mem_calculator.runfile.text.errors import InputError

from .test_best import asked

ONE_CHOICE = {**asked().fix, "training.activation_checkpointing": "full", "training.batch_size": 1}
MODELS = ["gpt2", "qwen2.5-0.5b", "llama3.2-1b", "qwen2.5-3b", "llama3.1-8b", "llama3.1-70b"]


def question(goal: str, **changes: Any) -> PlanQuestion:
    """A question with few set-ups."""
    return asked(**{"goal": goal, "top": 1, "fix": ONE_CHOICE} | changes)


def first_that_fits(questions: Iterable[PlanQuestion]) -> PlanQuestion:
    """What is found by trying one question after the other."""
    return next(one for one in questions if goals.fitting(one, silent) is not None)


def test_the_fewest_gpus_are_those_of_trying_every_number() -> None:
    """A model that takes four cards."""
    wanted = question(FEWEST_GPUS, model={"name": "llama3.2-3b"}, hardware={"gpu": "rtx-4090"})
    plain = replace(wanted, goal=FASTEST)
    every = [goals._on_gpus(plain, count) for count in goals.GPU_COUNTS]
    found = goals.at_goal(wanted, silent).question
    assert found == first_that_fits(every)
    assert found.hardware["num_gpus"] > 1


def test_the_longest_context_is_that_of_trying_every_length() -> None:
    """First twice as long each time, then in eighths."""
    wanted = question(LONGEST_CONTEXT, seq_len=None, global_batch=2)
    plain = replace(wanted, goal=FASTEST)
    longest = first_that_fits(replace(plain, seq_len=one) for one in goals.CONTEXTS[::-1])
    finer = [longest.seq_len * eighths // 8 for eighths in goals.EIGHTHS]  # type: ignore[operator]
    exhaustive = first_that_fits(replace(plain, seq_len=one) for one in finer[::-1])
    assert goals.at_goal(wanted, silent).question == exhaustive


def test_the_largest_batch_is_that_of_trying_every_size() -> None:
    """A micro-batch of each GPU, without accumulation."""
    fix = {key: value for key, value in ONE_CHOICE.items() if key != "training.batch_size"}
    wanted = question(LARGEST_BATCH, fix=fix)
    fix = {**fix, "training.gradient_accumulation_steps": 1}
    every = [replace(wanted, goal=FASTEST, global_batch=2 * one, fix=fix) for one in goals.BATCHES]
    assert goals.at_goal(wanted, silent).question == first_that_fits(every[::-1])


def test_the_largest_model_is_that_of_trying_every_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of a short list."""
    monkeypatch.setattr(goals, "_models", lambda: MODELS)
    wanted = question(LARGEST_MODEL, model={})
    every = [replace(wanted, goal=FASTEST, model={"name": name}) for name in MODELS]
    found = goals.at_goal(wanted, silent).question
    assert found == first_that_fits(every[::-1])
    assert found.model["name"] not in (MODELS[0], MODELS[-1])


def test_where_the_replay_refuses_what_the_ledger_accepts_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger says where to begin, and replays decide."""
    monkeypatch.setattr(goals, "_models", lambda: MODELS[:4])
    monkeypatch.setattr(goals, "fits_by_ledger", lambda question: True)
    tried: list[str] = []

    def fitting(question: PlanQuestion, report: Any) -> Any:
        tried.append(question.model["name"])
        return "found" if question.model["name"] == MODELS[1] else None

    monkeypatch.setattr(goals, "fitting", fitting)
    assert goals.at_goal(question(LARGEST_MODEL, model={}), silent) == "found"
    assert tried == MODELS[3:0:-1]


def test_no_number_of_gpus_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where even the most GPUs do not help."""
    monkeypatch.setattr(goals, "GPU_COUNTS", (1, 2))
    large = question(FEWEST_GPUS, model={"name": "llama3.1-70b"}, hardware={"gpu": "rtx-4090"})
    with pytest.raises(InputError, match="no number of GPUs up to 2 fits"):
        goals.at_goal(large, silent)


def test_a_probe_stops_at_the_first_set_up_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the space is not searched."""
    searches: list[int] = []
    search = goals.search

    def counted(structures: Any, batch: int) -> Any:
        found = search(structures, batch)
        searches.append(found.feasible)
        return found

    monkeypatch.setattr(goals, "search", counted)
    assert goals.fits_by_ledger(asked(goal=FASTEST))
    assert searches[-1] > 0
    assert not any(searches[:-1])
