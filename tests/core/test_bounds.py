"""What is not modelled: its bounds, and the verdict with them."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.core.bounds import bound_bytes, bounded_verdict, deciding
from gpu_mem_calculator.core.calculator import verdict
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.memory_result import with_limits
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.limits import BoundedLimit, Limit
from tests.conftest import small_run

LESS = BoundedLimit(key="a", why="b", adds_bytes=0)
MORE = BoundedLimit(key="a", why="b", saves_bytes=0)
EITHER = BoundedLimit(key="a", why="b")
SMALL = BoundedLimit(key="a", why="b", adds_bytes=10, saves_bytes=3)


@pytest.mark.parametrize(
    ("word", "headroom", "limits", "verdict"),
    [
        ("fits", 5, [], "fits"),
        ("fits", 5, [LESS], "fits"),
        ("fits", 5, [MORE], "cannot_tell"),
        ("fits", 10, [SMALL, LESS], "fits"),
        ("fits", 19, [SMALL, SMALL], "cannot_tell"),
        ("does_not_fit", -5, [], "does_not_fit"),
        ("does_not_fit", -5, [MORE, SMALL], "does_not_fit"),
        ("does_not_fit", -3, [SMALL], "cannot_tell"),
        ("does_not_fit", -5, [LESS], "cannot_tell"),
        ("does_not_fit", -5, [MORE, EITHER], "cannot_tell"),
        ("cannot_tell", 5, [], "cannot_tell"),
    ],
)
def test_a_verdict_holds_where_the_bounds_cannot_turn_it(
    word: str, headroom: int, limits: list[BoundedLimit], verdict: str
) -> None:
    """All limits in the direction that would turn it count together."""
    assert bounded_verdict(word, headroom, limits) == verdict


def test_a_bound_can_be_a_part_of_the_estimate() -> None:
    """What touches the activations alone saves at most those at the peak."""
    result = estimate(small_run())
    parts = result.breakdown
    assert bound_bytes("activations", result) == round(parts.activations_gb * GIB)
    both = parts.gradients_gb + parts.optimizer_states_gb
    assert bound_bytes("gradients+optimizer_states", result) == round(both * GIB)
    assert bound_bytes("weights_16bit", result) == 2 * result.num_parameters
    assert bound_bytes(7, result) == 7
    assert bound_bytes(None, result) is None
    with pytest.raises(InputError, match="'coffee' is not a part of an estimate"):
        bound_bytes("coffee", result)


def test_a_result_names_what_decides() -> None:
    """The verdict, fits_on_gpu and the summary say the same; the unbounded limit comes first."""
    result = estimate(small_run())
    assert result.verdict == "fits"
    assert result.summary.startswith("fits: needs ")
    small = Limit(key="small=1", why="adds a little", could="more", adds=1)
    assert with_limits(result, [small]).verdict == "fits"
    unknown = Limit(key="strange=1", why="adds something", could="more")
    found = with_limits(result, [small, unknown])
    assert (found.verdict, found.fits_on_gpu) == ("cannot_tell", False)
    assert [one.key for one in deciding(found)] == ["strange=1", "small=1"]
    assert found.summary.startswith("cannot tell: needs ")
    assert "open: strange=1 and small=1" in found.summary


def test_limits_stay_with_a_run_file() -> None:
    """A run that was read from another tool's file keeps what is not modelled when it is saved."""
    limit = {"key": "strange=1", "why": "adds something", "could": "more"}
    run = {**small_run(), "limits": [limit]}
    result = estimate(run)
    assert result.verdict == verdict(run) == "cannot_tell"
    assert estimate(result.run).limits == result.limits
    assert estimate({**run, "limits": [{**limit, "adds": 1}]}).verdict == "fits"
    with pytest.raises(InputError, match="limits must be a list of objects"):
        estimate({**run, "limits": [{"key": 1}]})
