"""The score of predicted step times, on made-up predictions."""

from __future__ import annotations

import pytest

from .baseline import Utilised, best_constant, left_out_errors
from .rows import TimingRow
from .score import Predicted, questions, score
from .spread import Residual, covered, factors, first_half
from .translate import TimedRun


def made_up(tp: int, seconds: float, estimate: float, batch: int = 8) -> Predicted:
    """A prediction for one model on 8 GPUs."""
    file = {
        "model": {"name": "gpt2"},
        "training": {"batch_size": batch, "seq_len": 1024, "gradient_accumulation_steps": 1},
        "parallelism": {"data_parallel_size": 1, "tensor_parallel_size": tp},
        "hardware": {"gpu": "h200", "num_gpus": 8},
    }
    row = TimingRow(id=f"tp{tp}", source="here", gpu="H200", n_gpus=8)
    run = TimedRun(row=row, file=file, seconds=seconds, origin="seconds")
    return Predicted(run=run, estimate=estimate, low=0.9 * estimate, high=1.1 * estimate)


def test_errors_are_of_the_measured_seconds() -> None:
    """20 % too long and 5 % too short."""
    found = score([made_up(1, 1.0, 1.2), made_up(2, 2.0, 1.9)])
    assert (found.n, found.mean, found.bias) == (2, pytest.approx(12.5), pytest.approx(7.5))
    assert found.inside == 50


def test_pairs_of_one_question_are_ordered_or_not() -> None:
    """Three set-ups: one pair of three is in the wrong order."""
    found = score([made_up(1, 1.0, 1.2), made_up(2, 1.1, 1.1), made_up(4, 2.0, 2.0)])
    assert found.pairs == 3
    assert found.ordered == pytest.approx(100 * 2 / 3)
    assert found.regret == pytest.approx(10)


def test_other_batches_are_other_questions() -> None:
    """Only set-ups with as many tokens a step are compared."""
    found = [made_up(1, 1.0, 1.2), made_up(2, 1.1, 1.1, batch=16)]
    assert list(questions(found)) == []
    assert score(found).ordered is None


def test_a_set_up_that_was_measured_twice_is_no_pair() -> None:
    """Nothing orders it."""
    assert score([made_up(1, 1.0, 1.2), made_up(1, 1.1, 1.2)]).pairs == 0


def test_the_best_constant_has_the_least_mean_error() -> None:
    """Against a search over many constants; sources count the same, whatever their size."""
    runs = [Utilised("a", m) for m in (0.1, 0.2, 0.21)] + [Utilised("b", m) for m in (0.5, 0.6)]

    def cost(constant: float) -> float:
        a, b = ([abs(r.mfu / constant - 1) for r in runs if r.source == s] for s in "ab")
        return sum(a) / len(a) + sum(b) / len(b)

    best = min((step / 1000 for step in range(50, 900)), key=cost)
    assert best_constant(runs) == pytest.approx(best, abs=0.002)


def test_a_source_never_fits_its_own_constant() -> None:
    """The constant of a source's errors is that of the others."""
    errors = left_out_errors([Utilised("a", 0.2), Utilised("b", 0.4)])
    assert errors["a"] == pytest.approx([-50])
    assert errors["b"] == pytest.approx([100])


def test_factors_leave_the_same_on_each_side() -> None:
    """Ten runs measured 0.95 to 1.4 times their estimates: one below, one above."""
    found = [
        Residual(source="here", kind="FSDP", ratio=0.95 + 0.05 * number, first=True)
        for number in range(10)
    ]
    low, high = factors(found, 0.8)
    assert (low, high) == (pytest.approx(0.95), pytest.approx(1.35))
    assert covered(found, (low, high)) == 90


def test_sources_count_the_same_in_factors() -> None:
    """A source with many rows does not decide alone."""
    many = [Residual(source="a", kind="FSDP", ratio=1.0, first=True) for _ in range(100)]
    few = [Residual(source="b", kind="FSDP", ratio=1.5, first=True)]
    assert factors([*many, *few]) == (1.0, 1.5)


def test_halves_are_about_equal_and_stay_the_same() -> None:
    """A row never changes its half."""
    halves = [first_half(f"vtrain/{number}") for number in range(1000)]
    assert 450 < sum(halves) < 550
    assert halves[:4] == [first_half(f"vtrain/{number}") for number in range(4)]
