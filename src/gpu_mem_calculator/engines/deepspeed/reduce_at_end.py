"""Where gradients stay until the last micro-batch's backward is over: ZeRO 0, and 1 in a pipeline.

The bucket that a stage's first gradient makes, and the reduction at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...autograd.walk import BlockWalk
from ...ledger.ledger import COMM, FIRST, GRAD, SECOND, Entry
from ...ledger.num import Num, holds, larger, together
from ...ledger.remember import remembered
from ...run.phases import BACKWARD, OPTIMIZER
from ...step.activations import StageWalks
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup
from ...step.weights import embedding_tensors
from .cache_key import CacheKey, plain
from .first_gradient import first_hook
from .layout import ZeroLayout, in_bucket, named
from .levels import CountingAllocator
from .rank import GRADIENT
from .rank_stage0 import Stage0Rank
from .rank_stage12 import Stage12Rank

FILE = "runtime/zero/stage_1_and_2.py"
Order = tuple[tuple[tuple[int, ...], Num], ...]  # sizes of one unit, units


def reduction_entries(
    plan: ZeroLayout, stack: tuple[LayerGroup, ...], done: StageWalks
) -> Iterator[Entry]:
    """What adding up over the ranks needs; stage 0 has no buckets of its own."""
    order = arrivals(plan, stack, done)
    if plan.stage:
        yield from _bucket_entries(plan, stack, done, order)
        return
    yield plan.entry("gradients, flat copy for all-reduce", COMM, _reduced(plan, order)[0],
                     lambda b: named("epilogue")(b) * plan.boundary(b),
                     "runtime/engine.py:3795 flat buffers")  # fmt: skip


def _bucket_entries(
    plan: ZeroLayout, stack: tuple[LayerGroup, ...], done: StageWalks, order: Order
) -> Iterator[Entry]:
    """Made by the first gradient of a step, freed when its last backward ends."""
    if plan.contiguous:
        size = plan.bucket_bytes

        def live(beat: StepInstant) -> Num:
            stays = beat.later and beat.instant.phase != OPTIMIZER
            if stays or not in_bucket(beat) or beat.instant.where == "epilogue":
                return int(stays or in_bucket(beat))
            return 1 - _first_gradient(beat, order, stack)

        yield plan.entry("gradient bucket", COMM, size, live, f"{FILE}:3256")
        for beat in plan.beats:
            if beat.work == "layer" and beat.instant.phase == BACKWARD and not beat.later:
                here = _first_gradient(beat, order, stack)
                more = _more(done.layers[beat.stretch], stack[beat.stretch], size) * here
                yield plan.entry("gradient bucket, which the layer's first gradient makes", COMM,
                                 more, lambda b, this=beat: int(b is this),  # type: ignore[misc]
                                 f"{FILE}:3256")  # fmt: skip
        yield plan.entry("gradient bucket of the pipeline", COMM, size,
                         lambda b: named("epilogue")(b) * plan.boundary(b),
                         f"{FILE}:962")  # fmt: skip
    reduced, left = _reduced(plan, order)
    yield plan.entry("gradients of the slice's parameters", GRAD, left,
                     named("optimizer.norm", "optimizer.cast"),
                     f"{FILE}:2183 grads_in_partition")  # fmt: skip
    yield plan.entry("bucket being reduced, and the slice's gradients", GRAD, reduced,
                     lambda b: named("epilogue")(b) * plan.boundary(b),
                     f"{FILE}:973, :2183 a gradient in the bucket has no other copy")  # fmt: skip


def arrivals(plan: ZeroLayout, stack: tuple[LayerGroup, ...], done: StageWalks) -> Order:
    """Elements of gradients in the order in which they are reduced: backward's turned round."""
    width = plan.trained_width

    def sizes(walk: BlockWalk, first: int = 0) -> tuple[int, ...]:
        return tuple(int(size) // width for size, _ in reversed(walk.hooks[first:]))

    layers = tuple((sizes(walk), b.count) for walk, b in zip(done.layers, stack, strict=True))
    if plan.run.frozen:
        return layers
    table = tuple(int(n) for n in embedding_tensors(plan.run))
    return ((table, plan.first), *layers, (sizes(done.head, first_hook(plan)), plan.last))


def _first_gradient(beat: StepInstant, order: Order, stack: tuple[LayerGroup, ...]) -> Num:
    """1 where the stage's first gradient of all is made in the block at work."""
    after: Num = order[-1][1]
    for block in stack if beat.work != "layer" else stack[beat.stretch + 1 :]:
        after = after + block.count
    alone = holds(after == 0)
    if beat.instant.layer == SECOND:
        return 0
    if beat.instant.layer == FIRST:
        return alone * holds(stack[beat.stretch].count == 1)
    return alone if beat.work in ("layer", "embedding") else 0


def _more(walk: BlockWalk, block: LayerGroup, size: Num) -> Num:
    """What a bucket adds to a layer's highest moment, which may come before its first gradient."""
    script = walk.script
    held: Num = script.sizes[script.exit_grad] + (
        walk.input_bytes if block.recompute == "full" else walk.saved_bytes
    )
    before: Num = held
    if block.recompute == "full":
        for event in script.forward:
            held = held + (script.sizes[event] if event >= 0 else -script.sizes[~event])
            before = larger(before, held)
        held = held - (0 if block.reentrant else script.sizes[script.exit])
    highs = [before, 0]
    made = script.hooks[0] if script.hooks else len(script.backward)
    for at, event in enumerate(script.backward):
        held = held + (script.sizes[event] if event >= 0 else -script.sizes[~event])
        highs[at >= made] = larger(highs[at >= made], held)
        if at + 1 == made:
            highs[1] = larger(highs[1], held)
    return larger(highs[0], highs[1] + size) - larger(highs[0], highs[1])


def _reduced(plan: ZeroLayout, order: Order) -> tuple[Num, Num]:
    """What the reduction needs beside all gradients and the buckets, and what it leaves."""

    def one(ranks: int, *units: int) -> tuple[int, int]:
        here = tuple((row, n) for (row, _), n in zip(order, units, strict=False))
        own = tuple((row, n) for (row, _), n in zip(plan.runs, units[len(order) :], strict=True))
        return reduction(CacheKey(plain(plan, ranks, 1, own), here))

    most, left = together(one, plan.ranks, *(n for _, n in order), *(n for _, n in plan.runs))
    return most, left


@remembered(256, always=True)
def reduction(case: CacheKey) -> tuple[int, int]:
    """Run the keeper's reduction of gradients that have all come."""
    plan, counter = case.plan, CountingAllocator()
    keeper = Stage12Rank(plan, counter) if plan.stage else Stage0Rank(plan, counter)
    sizes = [size for row, units in case.more for _ in range(units) for size in row]
    for number, size in enumerate(reversed(sizes)):
        keeper.grads[0, number] = counter.make_on(0, size * plan.trained_width, GRADIENT)
    before = counter.total
    keeper.epilogue()
    buckets = plan.bucket_bytes * int(plan.stage > 0 and plan.pipeline and plan.contiguous)
    return max(counter.look()[0] - before - buckets, 0), counter.total
