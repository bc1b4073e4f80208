"""Gradients that are reduced after the last micro-batch's backward: ZeRO 0, and 1 in a pipeline.

With the bucket that a stage's first gradient makes, the activations that are alive then, and the
reduction at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ....ledger.ledger import ACT, COMM, FIRST, GRAD, SECOND, Entry, Ledger
from ....ledger.num import EMPTY, Bytes, Num, holds, larger, nothing, sized, together
from ....ledger.remember import remembered
from ....ledger.source import code
from ....pytorch.autograd.walk import BlockWalk
from ....run.phases import BACKWARD, OPTIMIZER
from ....run.recompute import FULL
from ...step.activations import StageWalks
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup, LayerGroups
from ...step.weights import embedding_tensors
from .cache_key import CacheKey, plain
from .layout import ZeroLayout, in_bucket, named
from .levels import CountingAllocator
from .pipeline import pipeline_workspaces
from .rank import GRADIENT
from .rank_stage0 import Stage0Rank
from .rank_stage12 import Stage12Rank
from .stage12 import whole_gradients
from .states import state_entries

WAITS = "head: gradient that waits for the embedding's"
SOURCE = code(
    "torch 2.11 autograd: a gradient's hook runs when its operation has freed its tensors"
)
FILE = "runtime/zero/stage_1_and_2.py"
Order = tuple[tuple[tuple[int, ...], Num], ...]  # sizes of one unit, units


def end_reduced_ledger(
    plan: ZeroLayout,
    stack: LayerGroups,
    walks: StageWalks,
    saved: Iterable[Entry],
    more: Iterable[Entry],
) -> Ledger:
    """The ledger of ZeRO 0, or of a pipeline's stage: gradients stay where autograd puts them until
    backward is over. `saved`: what layers keep; `more`: what is beside layers and states.
    """
    entries = (
        *state_entries(plan),
        *whole_gradients(plan, stack),
        *reduction_entries(plan, stack, walks),
        *saved,
        *hook_entries(plan, walks),
        *more,
        *pipeline_workspaces(plan, stack),
    )
    return plan.ledger(entries)


def reduction_entries(plan: ZeroLayout, stack: LayerGroups, walks: StageWalks) -> Iterator[Entry]:
    """Buckets and copies for the reduction over the ranks; stage 0 has no buckets."""
    order = reduction_order(plan, stack, walks)
    if plan.stage:
        yield from _bucket_entries(plan, stack, walks, order)
        return
    name, size = "gradients, flat copy for all-reduce", _reduction_bytes(plan, order)[0]
    yield plan.entry(name, COMM, size, _at_the_end(plan), "runtime/engine.py:3795 flat buffers")


def _at_the_end(plan: ZeroLayout) -> Callable[[StepInstant], Num]:
    """One copy while the last micro-batch's gradients are reduced, which may be the only one's."""
    only = holds(plan.run.micro_batches == 1)
    return lambda instant: named("epilogue")(instant) * (1 if instant.later else only)


def _bucket_entries(
    plan: ZeroLayout, stack: LayerGroups, walks: StageWalks, order: Order
) -> Iterator[Entry]:
    """The bucket: made by the first gradient of a step, freed when its last backward ends."""
    if plan.contiguous:
        size = plan.bucket_bytes

        def live(instant: StepInstant) -> Num:
            stays = instant.later and instant.instant.phase != OPTIMIZER
            if stays or not in_bucket(instant) or instant.instant.where == "epilogue":
                return int(stays or in_bucket(instant))
            return 1 - _first_gradient(instant, order, stack)

        yield plan.entry("gradient bucket", COMM, size, live, f"{FILE}:3256")
        for instant in plan.instants:
            if instant.work == "layer" and instant.instant.phase == BACKWARD and not instant.later:
                walk, group = walks.layers[instant.stretch], stack[instant.stretch]
                first = _first_gradient(instant, order, stack)
                more = _added_bytes(walk, group, size) * first
                alone = _only_at(instant)
                name = "gradient bucket, which the layer's first gradient makes"
                yield plan.entry(name, COMM, more, alone, f"{FILE}:3256")
        name = "gradient bucket of the pipeline"
        yield plan.entry(name, COMM, size, _at_the_end(plan), f"{FILE}:962")
    reduced, left = _reduction_bytes(plan, order)
    owned, where = named(*plan.slice_gradient_instants), f"{FILE}:2183 grads_in_partition"
    yield plan.entry("gradients of the slice's parameters", GRAD, left, owned, where)
    name = "bucket being reduced, and the slice's gradients"
    where = f"{FILE}:973, :2183 a gradient in the bucket has no other copy"
    yield plan.entry(name, GRAD, reduced, _at_the_end(plan), where)


def _only_at(instant: StepInstant) -> Callable[[StepInstant], Num]:
    return lambda other: int(other is instant)


def reduction_order(plan: ZeroLayout, stack: LayerGroups, walks: StageWalks) -> Order:
    """Elements of gradients in the order in which they are reduced, the reverse of backward's."""
    width = plan.trained_width

    def sizes(walk: BlockWalk, first: int = 0) -> tuple[int, ...]:
        return tuple(int(size) // width for size, _ in reversed(walk.hooks[first:]))

    layers = tuple((sizes(walk), b.count) for walk, b in zip(walks.layers, stack, strict=True))
    if plan.run.frozen:
        return layers
    table = tuple(int(n) for n in embedding_tensors(plan.run))
    return ((table, plan.first), *layers, (sizes(walks.head, first_hook(plan)), plan.last))


def _first_gradient(instant: StepInstant, order: Order, stack: LayerGroups) -> Num:
    """1 where the block at work makes the first gradient of the stage, else 0."""
    later = stack if instant.work != "layer" else stack[instant.stretch + 1 :]
    after = sum((block.count for block in later), order[-1][1])
    alone = holds(after == 0)
    if instant.instant.layer == SECOND:
        return 0
    if instant.instant.layer == FIRST:
        return alone * holds(stack[instant.stretch].count == 1)
    return alone if instant.work in ("layer", "embedding") else 0


def _added_bytes(walk: BlockWalk, group: LayerGroup, size: Bytes) -> Bytes:
    """Bytes by which a bucket raises a layer's peak, which may come before its first gradient.

    size: bytes of the bucket
    """
    events = walk.script
    full = group.recompute == FULL
    alive = events.sizes[events.exit_grad] + (walk.input_bytes if full else walk.saved_bytes)
    before = alive
    if full:
        alive = alive + events.before_recompute()
        for event in events.forward:
            alive = alive + (events.sizes[event] if event >= 0 else -events.sizes[~event])
            before = larger(before, alive)
        alive = alive - (EMPTY if group.reentrant else events.sizes[events.exit])
        alive = alive - events.before_recompute()
    highs = [before, EMPTY]
    hook = events.hooks[0] if events.hooks else len(events.backward)
    for index, event in enumerate(events.backward):
        alive = alive + (events.sizes[event] if event >= 0 else -events.sizes[~event])
        highs[index >= hook] = larger(highs[index >= hook], alive)
        if index + 1 == hook:
            highs[1] = larger(highs[1], alive)
    return larger(highs[0], highs[1] + size) - larger(highs[0], highs[1])


def _reduction_bytes(plan: ZeroLayout, order: Order) -> tuple[Bytes, Bytes]:
    """Bytes that the reduction needs beyond gradients and buckets, and bytes of what it leaves."""

    def one(ranks: int, *units: int) -> tuple[int, int]:
        gradients = tuple((row, n) for (row, _), n in zip(order, units, strict=False))
        runs = tuple((row, n) for (row, _), n in zip(plan.runs, units[len(order) :], strict=True))
        return reduction(CacheKey(plain(plan, ranks, 1, runs), gradients))

    most, left = together(one, plan.ranks, *(n for _, n in order), *(n for _, n in plan.runs))
    return sized(most, 8), sized(left, 8)


@remembered(256, always=True)
def reduction(key: CacheKey) -> tuple[int, int]:
    """The bytes of `_reduction_bytes`, from a rank that reduces all gradients on a counter."""
    plan, counter = key.plan, CountingAllocator()
    rank = Stage12Rank(plan, counter) if plan.stage else Stage0Rank(plan, counter)
    sizes = [size for row, units in key.more for _ in range(units) for size in row]
    for number, size in enumerate(reversed(sizes)):
        rank.grads[0, number] = counter.make_on(0, size * plan.trained_width, GRADIENT)
    before = counter.total
    rank.epilogue()
    buckets = plan.bucket_bytes * int(plan.stage > 0 and plan.pipeline and plan.contiguous)
    return max(counter.look()[0] - before - buckets, 0), counter.total


def first_hook(plan: ZeroLayout) -> int:
    """Index of the head's gradient whose hook runs first: 1 if a shared table's waits, else 0."""
    return 0 if nothing(plan.table) else 1


def hook_entries(plan: ZeroLayout, walks: StageWalks) -> Iterator[Entry]:
    """The head's activations at its first gradient, which is alive while the final norm runs
    backward.

    The gradient of a shared table is counted with those that stay in the first micro-batch; in a
    later one it waits for the embedding's gradient.
    """
    first = first_hook(plan)
    for instant in plan.instants:
        if instant.instant.where != "head.gradient":
            continue
        _, act = walks.head.hooks[first]
        if not first:  # the final norm's backward comes after it
            act = larger(act, walks.head.after_first)
        elif instant.later:
            name, source = WAITS, code("torch 2.11 csrc/autograd/input_buffer.cpp")
            yield Entry(name, GRAD, plan.table, {instant.name: 1}, source)
        yield Entry("final norm and head: kept for backward", ACT, act, {instant.name: 1}, SOURCE)
