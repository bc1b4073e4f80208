"""ZeRO's parts: slices, shards, buckets, gathered parameters, pipeline cuts."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_mem_calculator.ledger.num import power_of_two
from gpu_mem_calculator.memory.zero.buckets import EMBEDDING, flushes
from gpu_mem_calculator.memory.zero.coordinator import Limits, Stack, gathered
from gpu_mem_calculator.memory.zero.modules import after_modules, before_modules, layer_modules
from gpu_mem_calculator.memory.zero.partition import (
    first_bucket,
    largest_owned,
    owned_elements,
    shard_elements,
)
from gpu_mem_calculator.memory.zero.pipeline import balanced, uniform
from tests.engines.test_deepspeed import SEVEN, TINY


def test_uniform_gives_the_first_parts_more() -> None:
    """partition_uniform of DeepSpeed."""
    assert uniform(10, 4) == (0, 3, 6, 8, 10)
    assert uniform(2, 4) == (0, 1, 2, 2, 2)


def test_balanced_narrows_the_spread() -> None:
    """partition_balanced of DeepSpeed."""
    assert balanced((1, 1, 1, 1), 2) == (0, 2, 4)
    assert balanced((6, 1, 1, 1, 1, 2), 2) == (0, 1, 6)


def test_owned_parameters_are_whole() -> None:
    """A slice that ends inside a parameter owns all of it."""
    runs = (((10,), 1), ((4, 3), 2), ((10,), 1))
    assert [owned_elements(runs, n) for n in (1, 10, 11, 15, 18, 25, 34)] == [
        10, 10, 14, 17, 21, 34, 34,
    ]  # fmt: skip


def test_longest_stretch_ends_with_the_slice() -> None:
    """A slice has a parameter only as far as it reaches."""
    runs = (((3,), 1), ((4, 9), 2), ((20,), 1))
    assert [largest_owned(runs, n) for n in (2, 3, 7, 9, 16, 39, 49)] == [2, 3, 4, 4, 9, 10, 20]


def test_first_bucket_ends_before_it_overflows() -> None:
    """Parameters go in from the first on; one that is too large goes in nowhere."""
    runs = (((3,), 1), ((4, 9), 2), ((20,), 1))
    assert [first_bucket(runs, n) for n in (2, 3, 15, 16, 20, 100)] == [0, 3, 7, 16, 20, 49]


def test_shards_are_padded_one_by_one() -> None:
    """Every parameter is rounded up by itself."""
    assert shard_elements({5: 2, 8: 1}, 4) == 2 * 2 + 2


def test_bucket_goes_off_before_it_overflows() -> None:
    """A gradient that does not go in sends the bucket off, and starts the next one."""
    sent = flushes((6,), (((3, 2), 2),), (9,), 10)
    assert [(f.block, f.done, f.hook, f.bucket) for f in sent.first] == [
        (0, 0, 1, 9), (EMBEDDING, 0, 0, 7),
    ]  # fmt: skip
    assert (sent.rest, sent.sent_by_layers) == (9, 9)
    assert [(f.arrives, f.sent) for f in sent.first] == [(2, 9), (9, 16)]


@pytest.mark.parametrize(("again", "expected"), [(False, 2003828736), (True, 2004877312)])
def test_gathered_at_the_end_of_forward_is_what_was_measured(again: bool, expected: int) -> None:
    """TinyLlama without and Llama-2-7B with recompute, to the byte."""
    arch = SEVEN if again else TINY
    stack = Stack(
        before_modules(arch),
        ((layer_modules(arch.layers[0]), len(arch.layers), again),),
        after_modules(arch),
    )
    assert 2 * gathered(stack, Limits()).end == expected


def test_shorter_stack_gathers_the_same() -> None:
    """Layers beyond what can be live repeat the same fetches."""
    ends = set()
    for depth in (11, 32, 80):
        groups = layer_modules(SEVEN.layers[0])
        stack = Stack(before_modules(SEVEN), ((groups, depth, False),), after_modules(SEVEN))
        found = gathered(stack, Limits())
        ends.add((found.end, found.head, found.layers[-1], found.layers[0], found.embedding))
    assert len(ends) == 1


def test_power_of_two_rounds_up() -> None:
    """Ints and arrays alike."""
    assert [power_of_two(n) for n in (0, 1, 2, 3, 1025)] == [0, 1, 2, 4, 2048]
    assert power_of_two(np.array([0, 1, 2, 3, 1025])).tolist() == [0, 1, 2, 4, 2048]
