"""The share of a card that SGLang takes, by version; from server_args.py of each."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.serving.sglang.defaults import CardMemory, _fraction_by_ranks
from gpu_mem_calculator.serving.sglang.options import vision_factor

SMALL_TOWER = 12 * 24 * 1024**2


@pytest.mark.parametrize(
    ("version", "factor"),
    [((0, 4, 5), 0.95), ((0, 4, 6), 0.9), ((0, 4, 8), 0.9), ((0, 4, 9), 0.95)],
)
def test_a_vision_tower_leaves_a_smaller_share(version: tuple[int, ...], factor: float) -> None:
    """0.95, from 0.4.6 on 0.9, from 0.4.9 on by the tower: 24 layers of 1,024 are 0.95 again."""
    assert vision_factor(version, SMALL_TOWER) == pytest.approx(factor)


def test_a_larger_tower_leaves_less() -> None:
    """A tenth less for each time the size, 0.8 at least."""
    assert vision_factor((0, 4, 9), 2 * SMALL_TOWER) == pytest.approx(0.95 * 0.9)
    assert vision_factor((0, 4, 9), 9 * SMALL_TOWER) == pytest.approx(0.95 * 0.8)


@pytest.mark.parametrize(
    ("version", "share"), [((0, 4, 5), 0.88), ((0, 4, 6), 0.87), ((0, 4, 7), 0.87)]
)
def test_stages_count_as_ranks_from_0_4_6_on(version: tuple[int, ...], share: float) -> None:
    """One tensor-parallel rank in two stages of an A100: two ranks, 0.87."""
    card = CardMemory(version=version, mib=81_000, tp=1, pp=2)
    assert _fraction_by_ranks(card) == share
