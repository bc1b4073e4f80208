"""Hook points: where, between the events of a block, DeepSpeed's hooks run."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ....ledger.remember import remembered
from ....pytorch.autograd.events import BlockEvents

HookPoint = tuple[int, str, int]  # events before it, the kind of hook, a number
BEFORE, AFTER, GRADIENT = "before", "after", "gradient"
WEIGHT = "weight"  # a weight's gradient is allocated, or freed (~number)
PassHooks = tuple[tuple[str, int, bool], ...]  # kind of hook, number, whether in a forward


class HookedBlock(Struct, frozen=True, cache_hash=True):
    """The hook points of a block, and the gradients of its weights.

    passes: hook points of each pass; a checkpointed block runs forward again before backward
    sizes: bytes of each gradient, partial ones of a shared weight included
    drops: for each weight, the index of its gradient in `sizes`
    entry: the index of a gradient that another block has made, or -1
    """

    passes: tuple[PassHooks, ...]
    sizes: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()
    entry: int = -1


@remembered(512)
def forward_hook_points(events: BlockEvents) -> list[HookPoint]:
    """The points before and after each operation of forward that reads weights, in order."""
    points: list[HookPoint] = []
    for number, (begin, end, _) in enumerate(events.calls):
        points += ((begin, BEFORE, number), (end, AFTER, number))
    return sorted(points, key=lambda point: point[0])


@remembered(512)
def backward_hook_points(events: BlockEvents) -> list[HookPoint]:
    """The same in backward, with the hooks of the gradients that an operation has made."""
    return sorted(_backward_points(events), key=lambda point: point[0])


def _backward_points(events: BlockEvents) -> Iterator[HookPoint]:
    hook = 0
    for number, (begin, end, _) in enumerate(events.back_calls):
        yield begin, BEFORE, number
        while hook < len(events.hooks) and events.hooks[hook] == end:
            yield end, GRADIENT, hook
            hook += 1
        yield end, AFTER, number


def weight_gradients(events: BlockEvents) -> tuple[int, ...]:
    """The tensors of a block that are gradients of weights."""
    if events.exit >= 0:
        return tuple(tensor for _, tensor in events.drops)
    rest = {events.exit_grad, *events.work}  # the embedding's backward has nothing else
    return tuple(tensor for tensor in range(len(events.sizes)) if tensor not in rest)


def all_hook_points(events: BlockEvents) -> list[HookPoint]:
    """The hook points of a backward in order, with the allocation and free of each gradient."""
    numbers = {tensor: number for number, tensor in enumerate(weight_gradients(events))}
    points: list[HookPoint] = []
    for index, event in enumerate(events.backward):
        number = numbers.get(event if event >= 0 else ~event)
        if number is not None:
            points.append((index + 1, WEIGHT, number if event >= 0 else ~number))
    if events.exit >= 0:
        points += _backward_points(events)
    else:
        end = len(events.backward)
        points.insert(0, (0, BEFORE, 0))
        points += [(end, GRADIENT, n) for n in range(len(events.drops) - 1, -1, -1)]
    return sorted(points, key=lambda point: point[0])


@remembered(512)
def hooked_forward(events: BlockEvents) -> HookedBlock:
    """The hook points of a block's forward."""
    return HookedBlock((_pass_hooks(forward_hook_points(events), forward=True),))


@remembered(512)
def hooked_backward(events: BlockEvents, *, again: bool) -> HookedBlock:
    """The hook points of a block's backward; `again`: the block runs forward again before it."""
    gradients = weight_gradients(events)
    passes = (_pass_hooks(all_hook_points(events), forward=False),)
    return HookedBlock(
        (*hooked_forward(events).passes, *passes) if again else passes,
        tuple(int(events.sizes[tensor]) for tensor in gradients),
        tuple(gradients.index(tensor) for _, tensor in events.drops),
        gradients.index(events.entry) if events.exit < 0 <= events.entry else -1,
    )


def _pass_hooks(points: list[HookPoint], *, forward: bool) -> PassHooks:
    return tuple((kind, number, forward) for _, kind, number in points)
