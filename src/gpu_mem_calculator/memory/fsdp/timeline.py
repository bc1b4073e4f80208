"""The instants of a step under FSDP2, and which units are gathered or being reduced at each.

Lifetimes are in the order of the host, which is the order the allocator sees. In forward the
all-gather buffer of a layer stays until the next layer's parameters are copied out of its own.
In backward the next layer's buffer is filled while this one computes, and the reduce-scatter
input of the layer above stays until this one needs its own (torch 2.13
F/_fsdp_param_group.py:429-489, 584, 647).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import Num
from ..stack import Block
from ..timeline import BACKWARD, FORWARD, Beat, step


class Spot(Struct, frozen=True):
    """A beat, what FSDP does then, and at which layer of the stack.

    `at`: "first" (the first layer is gathered), "switch" (the last one is), "forward", "loss",
    "root" (the root is gathered again), "loss.backward", "layer", "reduce", "embedding",
    "reduce.root" or "optimizer".
    """

    beat: Beat
    at: str
    layer: int


def ends_apart(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """The first and the last layer of the stack as blocks of their own.

    The last has no reduce-scatter above it and the first no gather below it, so the highest
    instant of the stretch between them is at one of its ends again.
    """
    found: list[Block] = []
    for index, block in enumerate(blocks):
        rest = int(block.count)
        if index == 0 and rest > 1:
            found.append(replace(block, count=1, title=f"first {block.title.removesuffix('s')}"))
            rest -= 1
        if index == len(blocks) - 1 and rest > 1:
            found.append(replace(block, count=rest - 1))
            found.append(replace(block, count=1, title=f"last {block.title.removesuffix('s')}"))
        elif rest > 0:
            found.append(replace(block, count=rest))
    return tuple(found)


def spots(blocks: tuple[Block, ...], micro_batches: Num, *, root_again: bool) -> list[Spot]:
    """The beats of a step with FSDP's own moments between them."""
    stretches = tuple(block.stretch for block in blocks)
    first = [sum(int(b.count) for b in blocks[:i]) for i in range(len(blocks) + 1)]
    found: list[Spot] = []
    for beat in step(stretches, micro_batches=micro_batches):
        found += _around(beat, blocks, first, root_again)
    return found


def _around(
    beat: Beat, blocks: tuple[Block, ...], first: list[int], root_again: bool
) -> Iterator[Spot]:
    """One beat of the step, with what FSDP does before or after it."""
    last = first[-1] - 1
    nothing = tuple(0 for _ in blocks)
    if beat.work == "layer" and beat.instant.phase == FORWARD:
        gather = _other(beat, "gather.first", "gather the first layer", saved=nothing)
        yield Spot(gather, "first", 0)
        if last > 0:
            yield Spot(_other(beat, "gather.last", "gather the last layer"), "switch", last)
        yield Spot(beat, "forward", last)
    elif beat.work == "layer":
        low, count = first[beat.stretch], int(blocks[beat.stretch].count)
        top = beat.name.endswith(".last")
        if top or count > 1:
            layer = low + count - 1 if top else low
            yield Spot(beat, "layer", layer)
            yield Spot(_other(beat, f"{beat.name}.reduce", f"{beat.instant.title}, reduce"),
                       "reduce", layer)  # fmt: skip
    elif beat.work == "head" and beat.instant.phase == BACKWARD:
        if root_again:
            yield Spot(_other(beat, "gather.root", "gather the root again"), "root", last + 1)
        yield Spot(beat, "loss.backward", last + 1)
    elif beat.work == "head":
        yield Spot(beat, "loss", last + 1)
    elif beat.work == "embedding":
        yield Spot(beat, "embedding", -1)
        yield Spot(_other(beat, "reduce.root", "reduce the root's gradients"), "reduce.root", -1)
    else:
        yield Spot(beat, "optimizer", -1)


def _other(beat: Beat, name: str, title: str, **changes: object) -> Beat:
    """A beat like this one at which no block computes."""
    tag = "later." if beat.later and not name.startswith("later.") else ""
    word = ", later micro-batch" if tag else ""
    instant = replace(beat.instant, name=tag + name, title=title + word)
    return replace(beat, instant=instant, work="unit", **changes)
