"""The limits of stage 3 in elements: sub-groups, live parameters, reuse, persistence; by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import fields

from gpu_mem_calculator.ledger.ledger import Entry
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed.coordinator import (
    NO_RECOMPUTE,
    GatherLimits,
    ModuleStack,
    ModuleTrace,
    ParameterCoordinator,
)
from gpu_mem_calculator.training.engines.deepspeed.layout import ZeroLayout
from gpu_mem_calculator.training.engines.deepspeed.shards import largest_sub_groups, sub_groups
from tests.conftest import small_run


@pytest.mark.parametrize(
    ("limit", "groups"),
    [
        (1, [[4], [4], [2], [3]]),
        (4, [[4], [4], [2, 3]]),
        (5, [[4, 4], [2, 3]]),
        (8, [[4, 4], [2, 3]]),
        (9, [[4, 4, 2], [3]]),
        (100, [[4, 4, 2, 3]]),
    ],
)
def test_a_sub_group_is_closed_when_it_has_the_limit(limit: int, groups: list[list[int]]) -> None:
    """zero/stage3.py _create_fp16_sub_groups: a group that has reached the limit takes no more."""
    assert sub_groups([4, 4, 2, 3], limit) == groups


def test_the_largest_sub_group_is_of_padded_shards() -> None:
    """Sizes 9 and 6 on 4 ranks are shards of 3 and 2, twice: groups of 5 and 5 elements."""
    assert largest_sub_groups((((9, 6), 2),), 4, 5, 2) == (5, 5, 5)


def test_a_sub_group_of_one_parameter_has_no_flat_copy() -> None:
    """A group of 8 elements alone casts 4 x 8 bytes; two of 3 cast 4 x 6 and copy 2 x 6 before."""
    assert largest_sub_groups((((8, 3, 3), 1),), 1, 6, 2) == (8, 6, 6)
    assert largest_sub_groups((((8, 3, 3), 1),), 1, 6, 0) == (8, 8, 0)


def entries(**engine: int) -> dict[str, Entry]:
    """The entries of a small ZeRO-3 run, by name."""
    found = resolve(read(small_run("deepspeed", engine={"zero_stage": 3, **engine})).file)
    return {entry.name: entry for entry in found.engine.ledger(found.run).entries}


# The small Llama on 8 ranks: embedding and head of 1,024 x 256; in each of 4 layers q and o of
# 256 x 256, k and v of 128 x 256, gate, up and down of 688 x 256, two norms; a last norm.
SHARDS = [32768, *[8192, 4096, 4096, 8192, 22016, 22016, 22016, 32, 32] * 4, 32, 32768]


@pytest.mark.parametrize("limit", [10_000, 50_000, 1_000_000])
def test_the_step_has_the_largest_sub_group_in_fp32(limit: int) -> None:
    """Groups are filled in the order of parameters, until each has the limit."""
    largest = filled = 0
    for shard in SHARDS:
        filled = shard if filled >= limit else filled + shard
        largest = max(largest, filled)
    assert entries(sub_group_size=limit)["sub-group's fp32 gradients"].bytes == 4 * largest


def test_the_small_llama_has_these_shards() -> None:
    """The list above is the run's: masters are 4 bytes of each element."""
    assert entries()["fp32 master weights"].bytes == 4 * sum(SHARDS)


@pytest.mark.parametrize(("threshold", "small"), [(255, 0), (256, 9 * 256), (32768, 9 * 256)])
def test_parameters_up_to_the_threshold_stay_gathered(threshold: int, small: int) -> None:
    """Nine norms of 256 elements in bf16; a matrix of 32,768 elements reaches its threshold."""
    matrices = 8 * 32768 if threshold == 32768 else 0
    found = entries(stage3_param_persistence_threshold=threshold)["persistent parameters"]
    assert found.bytes == 2 * (small + matrices)


STACK = ModuleStack(
    ((), (), (100,), ()), (((((),), ((), (30,), (50,))), 3, NO_RECOMPUTE),), ((100,),)
)


def live_elements(**limits: int) -> list[int]:
    """Gathered elements after each fetch of forward, as DeepSpeed counts them."""
    trace = ModuleTrace(STACK)
    state = ParameterCoordinator(trace, GatherLimits(**{"persist": 0, **limits}))
    counts = []
    for module, fetched in trace.events[: trace.ended]:
        if fetched:
            state.fetch(trace.modules[module])
            counts.append(state.count)
        else:
            state.release(trace.modules[module])
    return counts


def test_without_prefetch_and_reuse_one_module_is_live() -> None:
    """100 for the embedding, then 30, 50 in each layer, 100 for the head; 0 between."""
    counts = live_elements(prefetch=0, live=0, reuse=0)
    assert [count for count in counts if count] == [100, *[30, 50] * 3, 100]


def test_prefetch_stops_at_the_limit_of_live_parameters() -> None:
    """180 live elements are 100 + 30 + 50; one more allows the next parameter, of 30."""
    assert live_elements(prefetch=1000, live=180, reuse=0)[0] == 180
    assert live_elements(prefetch=1000, live=181, reuse=0)[0] == 210


def test_live_parameters_leave_less_to_prefetch() -> None:
    """With 100 live and a limit of 120, the third fetch prefetches 30, which the limit allows."""
    assert live_elements(prefetch=50, live=120, reuse=0)[:3] == [100, 130, 130]


def test_prefetch_stops_at_its_bucket() -> None:
    """A bucket of 100 is filled by the embedding; one of 101 takes the next parameter, too."""
    assert live_elements(prefetch=100, live=1000, reuse=0)[0] == 100
    assert live_elements(prefetch=101, live=1000, reuse=0)[0] == 100 + 30


def test_a_parameter_that_is_used_again_soon_stays() -> None:
    """The head is read by backward at once; with any reuse distance it is not released."""
    trace = ModuleTrace(STACK)
    for reuse, live in ((0, False), (1000, True)):
        state = ParameterCoordinator(
            trace, GatherLimits(prefetch=0, live=1000, reuse=reuse, persist=0)
        )
        for module, fetched in trace.events[: trace.ended]:
            (state.fetch if fetched else state.release)(trace.modules[module])
        assert state.available[-1] is live


def test_megatron_deepspeed_has_deepspeeds_limits() -> None:
    """zero/config.py of 0.19.8: its options do not change them."""
    defaults = {field.name: field.default for field in fields(ZeroLayout)}
    limits = defaults["limits"]
    assert defaults["sub_group"] == 1_000_000_000
    assert (limits.prefetch, limits.live, limits.reuse) == (50_000_000, 10**9, 10**9)
    assert limits.persist == 100_000
