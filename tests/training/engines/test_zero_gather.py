"""Stage 3's parameters, gathered tensor by tensor; stage 1's reduction in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.pytorch.autograd.peak import PeakParts
from gpu_mem_calculator.pytorch.autograd.tape import Tape
from gpu_mem_calculator.pytorch.autograd.walk import walk
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed.cache_key import CacheKey, plain
from gpu_mem_calculator.training.engines.deepspeed.coordinator import (
    NO_RECOMPUTE,
    RECOMPUTE,
    RECOMPUTE_HOLDS,
    GatherLimits,
    ModuleStack,
    ModuleTrace,
)
from gpu_mem_calculator.training.engines.deepspeed.gather import GatherAllocator, WeightReader
from gpu_mem_calculator.training.engines.deepspeed.gather_script import (
    GatheredBlock,
    GatheredModel,
    _Recording,
    gather_script,
)
from gpu_mem_calculator.training.engines.deepspeed.hook_points import AFTER, BEFORE
from gpu_mem_calculator.training.engines.deepspeed.instants import _peaks
from gpu_mem_calculator.training.engines.deepspeed.levels import CountingAllocator
from gpu_mem_calculator.training.engines.deepspeed.reduce_at_end import _added_bytes, reduction
from gpu_mem_calculator.training.engines.deepspeed.step_ledger import _zero_layout
from tests.conftest import small_run

LAYER = (((),), ((), (30,), (50,)))  # a module without parameters, and one with two projections


def stack(again: int) -> ModuleStack:
    """Two layers between an embedding and a head of 100 elements each."""
    return ModuleStack(((), (), (100,), ()), ((LAYER, 2, again),), ((100,),))


def most_of_a_recorded_pass(again: int) -> int:
    """The most bytes that are gathered at once while the order of modules is recorded."""
    to, trace = CountingAllocator(), ModuleTrace(stack(again))
    state = GatherAllocator(trace, GatherLimits(persist=0), to, ranks=2, lane=0, from_host=False)
    WeightReader(trace, state).advance(len(trace.events))
    state.sweep(persistent=True)
    assert not to.total
    return to.look()[0]


def test_a_recorded_pass_gathers_one_module_at_a_time() -> None:
    """The largest parameter is the most that is gathered."""
    assert most_of_a_recorded_pass(NO_RECOMPUTE) == 100


def test_a_second_forward_holds_the_weights_it_has_read() -> None:
    """A checkpoint's hooks keep 30 + 50 elements until backward has read them."""
    again = ModuleStack(((), (), (10,), ()), ((LAYER, 1, RECOMPUTE_HOLDS),), ((10,),))
    bare = GatherLimits(prefetch=0, live=0, reuse=0, persist=0)
    to, trace = CountingAllocator(), ModuleTrace(again)
    state = GatherAllocator(trace, bare, to, ranks=2, lane=0, from_host=False)
    state.traced = True
    WeightReader(trace, state).advance(len(trace.events))
    assert to.look()[0] == 30 + 50


def test_gathers_are_padded_to_the_ranks() -> None:
    """100 elements on 8 ranks are 104."""
    to, trace = CountingAllocator(), ModuleTrace(stack(NO_RECOMPUTE))
    state = GatherAllocator(trace, GatherLimits(persist=0), to, ranks=8, lane=0, from_host=False)
    WeightReader(trace, state).advance(trace.begun - 2)
    assert max(to.sizes) == 104


def gathered_at_hooks(given: tuple[int, ...] = (), *, persist: int = 0) -> list[int]:
    """Bytes that are gathered at each end of a script of two layers, without prefetch."""
    both = ((BEFORE, 0), (AFTER, 0), (BEFORE, 1), (AFTER, 1))
    forward, backward = (tuple((*hook, ahead) for hook in both) for ahead in (True, False))
    layer = GatheredBlock((forward,), (backward,), ((30, 50), (50, 30)))
    head = GatheredBlock((forward[:2],), (backward[:2],), ((100,), (100,)))
    limits = GatherLimits(prefetch=0, live=0, reuse=0, persist=persist)
    model = GatheredModel(stack(NO_RECOMPUTE), limits, 2, False, ((layer, 2),), head)
    script = gather_script(model, given, known=True)
    alive = {tensor: script.sizes[tensor] for tensor in range(len(given))}
    levels, begin = [], 0
    for end in script.ends:
        for event in script.events[begin:end]:
            if event >= 0:
                alive[event] = script.sizes[event]
            else:
                del alive[~event]
        levels.append(sum(alive.values()))
        begin = end
    assert sorted(alive) == sorted(script.left.values())
    return levels


def test_a_script_has_what_is_gathered_at_each_hook() -> None:
    """Two layers and the head; the same in backward, then the embedding; nothing is left."""
    forward, backward = [*[30, 0, 50, 0] * 2, 100, 0], [100, 0, *[50, 0, 30, 0] * 2]
    assert gathered_at_hooks() == [0, *forward, *backward, 100, 0]


def test_a_script_leaves_small_parameters_gathered() -> None:
    """Both of 30 elements are gathered before, or by the first layers that read them."""
    few = gathered_at_hooks(persist=30)
    more = gathered_at_hooks((1, 3), persist=30)
    assert few[1:3] == [30, 30]
    assert more[1:3] == [60, 60]
    assert few[-1] == more[-1] == 60


@pytest.mark.parametrize("again", [NO_RECOMPUTE, RECOMPUTE, RECOMPUTE_HOLDS])
@pytest.mark.parametrize("limits", [(0, 0, 0), (60, 300, 0), (80, 1000, 600), (200, 900, 2000)])
@pytest.mark.parametrize("given", [(), tuple(range(1, 40, 2))])
@pytest.mark.parametrize("known", [True, False])
def test_layers_that_are_recorded_again_are_as_they_would_be_recorded(
    again: int,
    limits: tuple[int, int, int],
    given: tuple[int, ...],
    known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty layers, whose smaller parameter stays gathered where it is so before."""
    both = ((BEFORE, 0), (AFTER, 0), (BEFORE, 1), (AFTER, 1))
    forward, backward = (tuple((*hook, ahead) for hook in both) for ahead in (True, False))
    layer = GatheredBlock(
        (forward,), (forward, backward) if again else (backward,), ((30, 50), (50, 30))
    )
    head = GatheredBlock((forward[:2],), (backward[:2],), ((100,), (100,)))
    many = ModuleStack(((), (), (100,), ()), ((LAYER, 20, again),), ((100,),))
    every = GatherLimits(*limits, persist=30 if given else 0)
    model = GatheredModel(many, every, 2, False, ((layer, 20),), head)
    script = _Recording(model, given, known=known).script()
    asked: list[int] = []
    monkeypatch.setattr(_Recording, "_again", lambda *_: asked.append(1) or 0)
    assert _Recording(model, given, known=known).script() == script
    assert asked or limits[0] or known == (not given)


def needed(sizes: tuple[int, ...], bucket: int) -> int:
    """Bytes that two ranks of stage 1 need beyond gradients of these sizes and the bucket."""
    run = resolve(read(small_run("deepspeed", engine={"zero_stage": 1})).file).run
    order = ((sizes, 1),)
    plan = plain(_zero_layout(run, 2, (0, 1, 1, 1)), 2, 1, order)
    return reduction(CacheKey(replace(plan, bucket=bucket), order))[0]


def test_gradients_in_the_bucket_make_room_for_the_slice() -> None:
    """All 40 elements fit into the bucket, and the slice's 20 are copied again."""
    assert needed((10, 10, 10, 10), 40) == 0
    assert needed((10, 10, 10, 10), 10) == 20 * 2 - 10 * 2


def test_a_gradient_larger_than_the_bucket_stays_beside_its_copy() -> None:
    """40 elements for two ranks are copied together, and then the slice's parameter."""
    assert needed((40,), 10) == 40 * 2


def test_one_rank_alone_gathers_nothing() -> None:
    """Its shards are the parameters, unless they come from the host."""
    for from_host, most in ((False, 0), (True, 100)):
        to, trace = CountingAllocator(), ModuleTrace(stack(NO_RECOMPUTE))
        state = GatherAllocator(
            trace, GatherLimits(persist=0), to, ranks=1, lane=0, from_host=from_host
        )
        WeightReader(trace, state).advance(trace.begun - 2)
        assert max(to.sizes) == most


def test_a_workspace_that_is_alive_at_a_hook_counts_there() -> None:
    """100 bytes before, a tensor of 10, a workspace of 5 that outlives the hook."""
    block = SimpleNamespace(sizes=(10, 5), work=(1,))
    before, at_hook, after = _peaks(block, (0, 1, ~1), [(2,)], 100, ())
    assert before == at_hook == after == (115, PeakParts(110, 0, 5))


def test_a_bucket_raises_a_peak_from_the_first_gradient_on() -> None:
    """55 bytes are the most before the hook of the first gradient, 45 after it."""
    tape = Tape()
    x, scale, weight = tape.value("x", 10, 8), tape.param("n", 3, 8), tape.param("w", 5, 8)
    normed = tape.op("norm", x, scale, saves=(x,), back_temp=7)
    y = tape.op("y", normed, weight, elements=20, saves=(normed, weight))
    group: Any = SimpleNamespace(recompute="none", reentrant=False)
    added = [_added_bytes(walk(tape, x, y), group, size) for size in (0, 10, 11, 30)]
    assert added == [0, 0, 1, 20]
