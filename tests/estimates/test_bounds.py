"""What is not modelled: its bounds, and the verdict with them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import gpu_mem_calculator as package
from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.bounds import bound_bytes, bounded_verdict, deciding, state_bytes
from gpu_mem_calculator.estimates.calculator import full_estimate, verdict
from gpu_mem_calculator.estimates.memory_result import with_limits
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.run.limits import BoundedLimit, Limit
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run

BOUNDS = {
    row[key]
    for path in Path(package.__file__).parent.rglob("*.toml")
    for row in tomllib.loads(path.read_text(encoding="utf-8")).get("refused", ())
    for key in ("adds", "saves")
    if isinstance(row, dict) and isinstance(row.get(key), str)
}
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


def test_limits_that_save_the_same_part_save_it_once() -> None:
    """A run whose states alone are too large fits with no batch and no length."""
    one = BoundedLimit(key="a", why="b", adds_bytes=0, saves_bytes=3, saves_part="tokens")
    assert bounded_verdict("does_not_fit", -5, [one, one]) == "does_not_fit"
    assert bounded_verdict("does_not_fit", -5, [one, SMALL]) == "cannot_tell"
    made, limits = (
        full_estimate(small_run()),
        [Limit(key=key, why="", saves="tokens") for key in "ab"],
    )
    states = state_bytes(made.result)
    for has, word in ((states - 1, "does_not_fit"), (states + 2**20, "cannot_tell")):
        on_card = full_estimate(with_settings(small_run(), [f"hardware.gpu_memory_bytes={has}"]))
        assert with_limits(on_card.result, limits).verdict == word


def test_a_bound_can_be_a_part_of_the_estimate() -> None:
    """What touches the activations alone saves at most those at the peak, and adds at most those of
    the instant that has most.
    """
    made = full_estimate(small_run())
    result, run = made.result, made.resolved.run
    peak = next(one for one in result.timeline if one["title"] == result.peak_instant)
    most = max(one["bytes"]["act"] for one in result.timeline)
    assert bound_bytes("activations", result, run, adds=False) == peak["bytes"]["act"]
    assert bound_bytes("2*activations", result, run, adds=True) == 2 * most
    logits = int(run.batch * run.seq) * run.arch.vocab
    both = bound_bytes("4*logits+1*weights", result, run, adds=True)
    assert both == 4 * logits + result.num_parameters
    assert bound_bytes("4*logits", result, None, adds=True) is None
    assert bound_bytes(7, result, run, adds=True) == 7
    with pytest.raises(InputError, match="'2 coffee' is not a bound"):
        bound_bytes("2 coffee", result, run, adds=True)


@pytest.mark.parametrize("bound", sorted(BOUNDS))
def test_every_bound_of_the_tables_can_be_worked_out(bound: str) -> None:
    """A table's row with a bound that has no meaning fails here, not in front of a user."""
    made = full_estimate(small_run())
    assert bound_bytes(bound, made.result, made.resolved.run, adds=True) is not None


def test_a_result_names_what_decides() -> None:
    """The verdict, fits_on_gpu and the summary say the same; the unbounded limit comes first."""
    result = estimate(small_run())
    assert result.verdict == "fits"
    assert verdict_line(result).startswith("fits: needs ")
    small = Limit(key="small=1", why="adds a little", could="more", adds=1)
    assert with_limits(result, [small]).verdict == "fits"
    unknown = Limit(key="strange=1", why="adds something", could="more")
    found = with_limits(result, [small, unknown])
    assert (found.verdict, found.fits_on_gpu) == ("cannot_tell", False)
    assert [one.key for one in deciding(found)] == ["strange=1", "small=1"]
    assert verdict_line(found).startswith("cannot tell: needs ")
    assert "open: strange=1 and small=1" in verdict_line(found)


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
