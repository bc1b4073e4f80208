"""Fits, tight or not: the words, and where one ends and the next begins."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import full_estimate, verdict
from gpu_mem_calculator.estimates.fit_verdict import gap_warning, headroom_bytes, replay_verdict
from gpu_mem_calculator.ledger.units import GIB, MIB
from tests.conftest import small_run


class FakeReplay(Struct):
    """A run that needs 1,000 and survives under caps in `alive`, with a margin of 30."""

    alive: range | tuple[int, ...]
    needs_bytes: int = 1000
    margin_bytes: int = 30
    enough_bytes: int = 1200

    def survives(self, cap: int) -> bool:
        """Whether the cap is among them."""
        return cap in self.alive


@pytest.mark.parametrize(
    ("cap", "word"),
    [
        (1300, "fits"),
        (1200, "fits"),
        (1199, "fits"),
        (1030, "fits"),
        (1029, "cannot_tell"),
        (1000, "cannot_tell"),
        (999, "does_not_fit"),
    ],
)
def test_a_run_is_tight_within_the_margin(cap: int, word: str) -> None:
    """It fits where it survives with the margin left over."""
    assert replay_verdict(FakeReplay(range(1000, 10**6)), cap) == word


def test_the_replay_under_the_cap_of_the_card_decides() -> None:
    """Also above the least memory, where a run may die again; and never where all fits."""
    island = FakeReplay((1000, *range(1100, 1200)))
    assert replay_verdict(island, 1050) == "does_not_fit"
    assert replay_verdict(island, 1130) == "fits"
    assert replay_verdict(island, 1120) == "cannot_tell"
    assert replay_verdict(FakeReplay(()), 1200) == "fits"


def test_by_the_ledger_alone_a_run_may_fit() -> None:
    """Tensors that do not fit decide; those that fit only with much more memory than they take."""
    has = estimate(small_run(), replay=False)
    tensors = has.allocated_bytes + has.outside_torch_bytes
    for size, word in ((-1, "does_not_fit"), (1, "cannot_tell"), (tensors, "fits")):
        card = small_run(hardware={"gpu_memory_bytes": tensors + size})
        assert estimate(card, replay=False).verdict == word


@pytest.mark.parametrize(
    ("word", "beyond", "headroom"),
    [
        ("fits", 5, 5),
        ("fits", -5, 0),
        ("cannot_tell", -5, -5),
        ("does_not_fit", 5, -1),
        ("does_not_fit", -5, -5),
        ("cannot_tell", 5, 5),
    ],
)
def test_the_headroom_has_the_sign_of_the_verdict(word: str, beyond: int, headroom: int) -> None:
    """A run that fits is never short, and the other way round."""
    assert headroom_bytes(word, beyond) == headroom


@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"])
def test_the_verdict_of_a_card_is_that_of_a_replay_under_its_limit(engine: str) -> None:
    """At caps around what the run needs; `verdict` agrees with the whole estimate."""
    made = full_estimate(small_run(engine))
    result, replayed = made.result, made.replayed
    assert replayed is not None
    assert result.needs_bytes is not None
    assert result.margin_bytes is not None
    assert result.needs_bytes <= (result.reserved_bytes or 0)
    certain = result.needs_bytes + result.margin_bytes
    for cap in (result.needs_bytes - 2 * MIB, result.needs_bytes, certain, certain + 2 * MIB):
        card = small_run(engine, hardware={"gpu_memory_bytes": cap + result.outside_torch_bytes})
        found = estimate(card)
        assert found.verdict == verdict(card)
        assert found.fits_on_gpu == (found.verdict == "fits")
        assert (found.verdict == "does_not_fit") == (not replayed.survives(cap))
        assert (found.headroom_bytes >= 0) == found.fits_on_gpu
        on_card = found.reserved_on_card_bytes
        assert (on_card is not None) == replayed.survives(cap)
        assert on_card is None or on_card <= cap
        assert on_card is None or found.device_bytes <= found.gpu_memory_bytes


@pytest.mark.parametrize(
    ("cap", "says"),
    [
        (1050, "survives in 1.98 GiB, but not in this card's 2.03: "),
        (1120, "survives in 1.98 GiB, but not in 2.06, within the margin of 2.09: "),
        (1130, ""),
        (999, ""),
        (1010, ""),
        (1300, ""),
    ],
)
def test_a_run_that_dies_with_more_memory_is_told_so(cap: int, says: str) -> None:
    """The warning names both sizes, with what is outside torch; else there is none."""
    alive = (1000, *range(1005, 1011), *range(1100, 1200))
    island = FakeReplay(
        tuple(one * MIB for one in alive), 1000 * MIB, 30 * MIB, enough_bytes=1200 * MIB
    )
    word = replay_verdict(island, cap * MIB)
    warning = gap_warning(word, island, cap * MIB, GIB)
    assert says in warning
    assert bool(says) == bool(warning)


GAPS: dict[str, dict[str, Any]] = {
    "pythia-410m": {"engine": {"type": "deepspeed", "zero_stage": 2}, "batch": 2, "seq": 512},
    "smollm2-135m": {"engine": {"type": "fsdp"}, "batch": 4, "seq": 1024, "attention": "eager"},
}


def test_a_card_in_a_gap_has_the_warning() -> None:
    """One of these runs survives in a memory, dies in a larger one, and survives in more."""
    for name, keys in GAPS.items():
        training = {"batch_size": keys["batch"], "seq_len": keys["seq"]}
        training |= {"gradient_accumulation_steps": 4, "attention": keys.get("attention", "sdpa")}
        run = {"model": {"name": name}, "engine": keys["engine"], "training": training}
        chip = {"num_gpus": 2, "gpu": "h200"}
        made = full_estimate({**run, "hardware": chip})
        result, replayed = made.result, made.replayed
        assert replayed is not None
        needs, outside = replayed.needs_bytes, result.outside_torch_bytes
        caps = [needs + (replayed.reserved_bytes - needs) * part // 60 for part in range(1, 60)]
        dies = next((cap for cap in caps if not replayed.survives(cap)), None)
        if dies is not None:
            card = {**chip, "gpu_memory_bytes": dies + outside}
            found = estimate({**run, "hardware": card})
            assert (found.verdict, found.fits_on_gpu) == ("does_not_fit", False)
            assert found.headroom_bytes < 0
            assert any("with more memory torch keeps other blocks" in one for one in found.warnings)
            return
    pytest.fail("none of the runs has a gap; find another one")
