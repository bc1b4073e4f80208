"""A problem is its sentence, and has the keys that it is about."""

from __future__ import annotations

import pickle

import pytest

from gpu_mem_calculator.run.problems import Problem, keys_of
from gpu_mem_calculator.runfile.text.errors import InputError, Problems

LOSS = "training.loss"


def test_a_problem_is_its_sentence() -> None:
    """It prints and compares as a text."""
    assert Problem("training.loss='cut' is refused", LOSS) == "training.loss='cut' is refused"
    assert keys_of(Problem("a", LOSS, "training.batch_size")) == (LOSS, "training.batch_size")
    assert keys_of("a sentence alone") == ()


def test_a_problem_keeps_its_keys_between_processes() -> None:
    """The web's workers send what they refuse."""
    problem = pickle.loads(pickle.dumps(Problem("a", LOSS)))
    assert (problem, problem.keys) == ("a", (LOSS,))


def test_an_error_has_the_keys_of_each_of_its_sentences() -> None:
    """Its sentences are plain texts, which JSON takes."""

    def refuse() -> None:
        raise InputError([Problem("a", LOSS), "b"])

    collected = Problems()
    collected.attempt(refuse)
    with pytest.raises(InputError) as raised:
        raise InputError([*collected, Problem("c", "engine.zero_stage")])
    assert raised.value.problems == ["a", "b", "c"]
    assert raised.value.keys == [(LOSS,), (), ("engine.zero_stage",)]
    assert all(type(sentence) is str for sentence in raised.value.problems), "JSON has no problems"
