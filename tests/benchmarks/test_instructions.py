"""The standard questions take no more instructions than they did when they were last counted."""

from __future__ import annotations

import json

import pytest

from benchmarks import instructions
from benchmarks.questions import IN_C, QUESTIONS, REPLAYS
from gpu_mem_calculator.pytorch.replay.native_library import library

A_TENTH = 1.1


def test_ten_questions_are_stored_with_both_replays() -> None:
    """`python -m benchmarks.instructions --store` writes them; C takes fewer than Python."""
    found = instructions.stored()
    assert len(instructions.COUNTED) == 10
    assert found.keys() == set(REPLAYS)
    assert all(found[replay].keys() == set(instructions.COUNTED) for replay in REPLAYS)
    assert sum(found[IN_C].values()) < sum(found["python"].values())


def test_a_question_has_an_aim_for_each_replay() -> None:
    """Python may take longer, never less; no question is there twice."""
    assert len({one.words for one in QUESTIONS}) == len(QUESTIONS) == 15
    assert all(0 < one.aims["c"] <= one.aims["python"] for one in QUESTIONS)


@pytest.mark.proof
@pytest.mark.skipif(instructions.VALGRIND is None, reason="valgrind is not installed: no counts")
@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("words", instructions.COUNTED)
def test_no_question_takes_a_tenth_more_instructions(words: str, replay: str) -> None:
    """Where it does on purpose, store the new counts and say why."""
    stored = json.loads(instructions.STORED.read_text("utf-8"))
    if stored["python"] != instructions.version():
        pytest.skip(f"stored with Python {stored['python']}: another one runs other instructions")
    if replay == IN_C and not library():
        pytest.skip("no library of the replay in C was built")
    now = instructions.ratio(words, replay)
    assert now <= A_TENTH * stored["ratios"][replay][words], f"{now} times Python's start"
