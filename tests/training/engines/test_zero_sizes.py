"""Sizes of a rank of ZeRO follow from its parameter groups, the ranks that share them, options."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed.sizes import (
    ZeroSizes,
    replicated_group,
    sharded_group,
    sliced_group,
    zero_sizes,
)
from tests.conftest import small_run


def _sizes(*groups: Any, width: int = 2, **options: Any) -> ZeroSizes:
    return zero_sizes(groups, width=width, largest=100, optimizer="adamw", **options)


def test_a_slice_is_padded_to_twice_the_ranks() -> None:
    """1,001 elements over 8 ranks are 1,008, of which a rank steps 126."""
    found = _sizes(sliced_group(1001, 8))
    assert (found.unflattened, found.flat, found.clone) == (2002, 2016, 252)
    assert (found.masters, found.states, found.step_grad) == (504, 1008, 504)


def test_groups_are_padded_one_by_one() -> None:
    """Dense parameters over 8 ranks, experts over the 2 that repeat them."""
    found = _sizes(sliced_group(1001, 8), sliced_group(333, 2))
    assert (found.whole, found.local) == (1008 + 336, 126 + 168)


def test_a_shard_is_of_every_parameter() -> None:
    """3 parameters of 10 and one of 7 over 4 ranks: 3 x 3 + 2."""
    found = _sizes(sharded_group(37, {10: 3, 7: 1}, 4))
    assert (found.flat, found.masters) == (22, 44)


def test_without_zero_a_rank_steps_everything() -> None:
    """Masters and states of all elements."""
    found = _sizes(replicated_group(1000))
    assert (found.flat, found.masters, found.states) == (2000, 4000, 8000)


def test_gradients_in_fp32_need_no_flat_copy() -> None:
    """Only narrower ones are laid out before they are cast."""
    assert _sizes(replicated_group(1000)).step_flat == 2000
    assert _sizes(replicated_group(1000), width=4).step_flat == 0


def test_a_sub_group_is_stepped_by_itself() -> None:
    """The weights stay, the step's copies are the sub-group's."""
    found = _sizes(replicated_group(1000), implementation="foreach").stepping(10)
    assert (found.flat, found.step_grad, found.update) == (2000, 40, 40)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ledger_and_stream_have_the_same_masters(stage: int) -> None:
    """One rank of 8 in both: the entry's bytes are those of tensors that start-up makes."""
    found = resolve(read(small_run("deepspeed", engine={"zero_stage": stage})).file)
    ledger = found.engine.ledger(found.run)
    (masters,) = (e for e in ledger.entries if e.name == "fp32 master weights")
    unrolled = found.engine.ledger(replace(found.run, unrolled=True))
    assert unrolled.writer is not None
    writer = unrolled.writer(unrolled)
    writer.rank.startup()
    made = [writer.sizes[tensor] for tensor in writer.rank.tensors["masters"]]
    assert sum(made) == masters.bytes
