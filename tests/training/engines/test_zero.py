"""ZeRO's parts: slices, shards, gathered parameters, pipeline stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_mem_calculator.ledger.num import power_of_two
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed import cache_key as case
from gpu_mem_calculator.training.engines.deepspeed import ledger, reduce_at_end
from gpu_mem_calculator.training.engines.deepspeed.coordinator import (
    GatherLimits,
    ModuleStack,
    ModuleTrace,
)
from gpu_mem_calculator.training.engines.deepspeed.gather import GatherAllocator, WeightReader
from gpu_mem_calculator.training.engines.deepspeed.layout import ZeroLayout
from gpu_mem_calculator.training.engines.deepspeed.levels import CountingAllocator
from gpu_mem_calculator.training.engines.deepspeed.modules import (
    after_modules,
    before_modules,
    layer_modules,
)
from gpu_mem_calculator.training.engines.deepspeed.pipeline import balanced_bounds, uniform
from gpu_mem_calculator.training.engines.deepspeed.shards import (
    largest_owned,
    owned_elements,
    shard_elements,
)
from tests.properties.test_engines import RUNS
from tests.training.engines.test_deepspeed import SEVEN, TINY


def test_uniform_gives_the_first_parts_more() -> None:
    """partition_uniform of DeepSpeed."""
    assert uniform(10, 4) == (0, 3, 6, 8, 10)
    assert uniform(2, 4) == (0, 1, 2, 2, 2)


def test_balanced_narrows_the_spread() -> None:
    """partition_balanced of DeepSpeed."""
    assert balanced_bounds((1, 1, 1, 1), 2) == (0, 2, 4)
    assert balanced_bounds((6, 1, 1, 1, 1, 2), 2) == (0, 1, 6)
    assert balanced_bounds((5, 1, 1, 5, 5, 1, 1, 5), 3) == (0, 3, 5, 8)
    assert balanced_bounds((9, *[2] * 7, 9), 4) == (0, 1, 5, 8, 9)


def test_owned_parameters_are_whole() -> None:
    """A slice that ends inside a parameter owns all of it."""
    runs = (((10,), 1), ((4, 3), 2), ((10,), 1))
    assert [owned_elements(runs, n) for n in (1, 10, 11, 15, 18, 25, 34)] == [
        10,
        10,
        14,
        17,
        21,
        34,
        34,
    ]


def test_longest_stretch_ends_with_the_slice() -> None:
    """A slice has only the part of a parameter that is inside it."""
    runs = (((3,), 1), ((4, 9), 2), ((20,), 1))
    assert [largest_owned(runs, n) for n in (2, 3, 7, 9, 16, 39, 49)] == [2, 3, 4, 4, 9, 10, 20]


def test_shards_are_padded_one_by_one() -> None:
    """Every parameter is rounded up alone."""
    assert shard_elements({5: 2, 8: 1}, 4) == 2 * 2 + 2


@pytest.mark.parametrize(("again", "expected"), [(False, 2003828736), (True, 2004877312)])
def test_gathered_at_the_end_of_forward_is_what_was_measured(again: bool, expected: int) -> None:
    """TinyLlama without and Llama-2-7B with recompute, to the byte."""
    arch = SEVEN if again else TINY
    layers = ((layer_modules(arch.layers[0]), len(arch.layers), again),)
    trace, counter = (
        ModuleTrace(ModuleStack(before_modules(arch), layers, after_modules(arch))),
        CountingAllocator(),
    )
    state = GatherAllocator(trace, GatherLimits(), counter, ranks=8, lane=0, from_host=False)
    state.gather_alone(p for p, stays in enumerate(state.persistent) if stays)
    state.traced = True
    counter.reset()
    WeightReader(trace, state).advance(trace.ended)
    assert 2 * counter.total == expected


def test_power_of_two_rounds_up() -> None:
    """The same answers for ints and for arrays."""
    assert [power_of_two(n) for n in (0, 1, 2, 3, 1025)] == [0, 1, 2, 4, 2048]
    assert power_of_two(np.array([0, 1, 2, 3, 1025])).tolist() == [0, 1, 2, 4, 2048]


READ = frozenset(("arch", "frozen", "scaled", "parameters_given"))  # by `Plan.table`, in the key


@pytest.mark.parametrize("name", [n for n in RUNS if n.startswith("zero")])
def test_a_cache_key_has_every_field_that_a_rank_reads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that a key leaves out would give one layout the bytes of another."""
    of_plan: set[str] = set()
    of_run: set[str] = set()

    class WatchedRun(Run, frozen=True, kw_only=True):
        """A run that records which fields are read."""

        def __getattribute__(self, name: str) -> Any:
            of_run.add(name)
            return super().__getattribute__(name)

    class Watched(ZeroLayout, frozen=True, kw_only=True):
        """A layout that records which fields are read."""

        def __getattribute__(self, name: str) -> Any:
            of_plan.add(name)
            return super().__getattribute__(name)

    def watched(*values: Any) -> ZeroLayout:
        layout = case.plain(*values)
        run = WatchedRun(**{f: getattr(layout.run, f) for f in layout.run.__struct_fields__})
        fields = {f: getattr(layout, f) for f in layout.__struct_fields__}
        return Watched(**{**fields, "run": run})

    for module in (ledger, reduce_at_end):
        monkeypatch.setattr(module, "plain", watched)
    resolved = resolve(read(RUNS[name]).file)
    forget()
    resolved.engine.ledger(resolved.run)
    assert of_plan
    assert of_plan & case.UNREAD <= {"run"}
    assert of_run & set(Run.__struct_fields__) <= READ | set(case.RUN)
