"""Drawn questions: each ends in an answer or a sentence, and keeps every law."""

from __future__ import annotations

import time

import pytest

from tests.questions.asking import CRASHED, TOO_LONG, ask
from tests.questions.drawing import drawn
from tests.questions.laws import Checks, plain_laws, result_laws
from tests.questions.question import RUN, Question, as_text, from_text
from tests.questions.tally import Tally, lines


def tally_of(seed: int, count: int, replay: float) -> Tally:
    """The tally of a seed."""
    tally = Tally()
    for question in drawn(seed, count, replay):
        tally.count(question, ask(question))
    return tally


@pytest.mark.parametrize("seed", [901, 902])
def test_questions_keep_every_law(seed: int) -> None:
    """A sample of them."""
    tally = tally_of(seed, 25, 0.05)
    assert not tally.broken, "\n".join(lines(tally))


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(1000, 1008))
def test_many_questions_keep_every_law(seed: int) -> None:
    """Some thousand of them."""
    tally = tally_of(seed, 400, 0.2)
    assert not tally.broken, "\n".join(lines(tally))


def test_a_seed_draws_the_same_questions() -> None:
    """A question of a tally can be asked again, by its seed or by its text."""
    first, second = list(drawn(3, 30, 0.5)), list(drawn(3, 30, 0.5))
    assert first == second
    assert [from_text(as_text(one)) for one in first] == first
    assert len({one.name for one in drawn(3, 200, 0.5)}) > 20


def test_a_broken_law_is_named() -> None:
    """Bytes below zero, a part above its whole, more than the card: each is found."""
    ended = ask(Question(kind=RUN, name="x", run={"model": {"name": "gpt2"}}, replay=True))
    assert not ended.broken
    assert ended.counts["allocated <= needs <= reserved"] == 1
    checks = Checks()
    plain_laws(checks, {"needs_bytes": -1, "headroom_bytes": -1, "x_seconds": float("nan")})
    assert [law for law, _ in checks.broken] == [
        "every number is finite",
        "no byte and no second is negative",
    ]


def test_a_result_that_is_changed_breaks_a_law() -> None:
    """No figure of a result can be raised above the next without a law that notices."""
    from msgspec import to_builtins

    from gpu_mem_calculator import estimate

    result = to_builtins(estimate({"model": {"name": "gpt2"}, "hardware": {"gpu": "h100"}}))
    for key in ("allocated_bytes", "needs_bytes", "device_bytes", "outside_torch_bytes"):
        checks = Checks()
        result_laws(checks, {**result, key: 10**15})
        assert checks.broken, key
    for key in ("margin_bytes", "reserved_bytes"):
        checks = Checks()
        result_laws(checks, {**result, key: -1})
        assert checks.broken, key


def test_a_crash_and_a_question_without_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ends the run of questions."""
    run = Question(kind=RUN, name="x", run={"model": {"name": "gpt2"}})

    def crash(*_args: object, **_more: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("tests.questions.asking.full_estimate", crash)
    ended = ask(run)
    assert ended.ended == CRASHED
    assert ended.broken[0][0] == "an answer or a sentence, no traceback"

    def wait(*_args: object, **_more: object) -> None:
        time.sleep(5)

    monkeypatch.setattr("tests.questions.asking.full_estimate", wait)
    assert ask(run, limit=1).ended == TOO_LONG
