"""What is at work when a weight's gradient reaches DeepSpeed's hook."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, GRAD, Entry
from ...ledger.num import Num, larger, nothing
from ...ledger.source import code
from ..activations import Walks
from ..stack import Block
from ..timeline import BACKWARD, Beat
from .buckets import EMBEDDING, HEAD, Flush, Flushes, flushes
from .plan import Plan

SOURCE = code("torch 2.11 autograd: a gradient's hook runs when its operation has let go")


def hook_sizes(done: Walks, blocks: tuple[Block, ...], width: int, first: int) -> tuple[
    tuple[int, ...], tuple[tuple[tuple[int, ...], int], ...]
]:  # fmt: skip
    """Elements of the head's gradients from number `first` on, and of each stretch's, in
    backward's order.
    """
    head = tuple(int(size) // width for size, _ in done.head.hooks[first:])
    layers = tuple(
        (tuple(int(size) // width for size, _ in walk.hooks), int(block.count))
        for walk, block in zip(done.layers, blocks, strict=True)
    )
    return head, layers


def first_hook(plan: Plan) -> int:
    """Which of the head's gradients reaches its hook first: not a shared table's, which waits."""
    return 0 if nothing(plan.table) else 1


def sent(plan: Plan, stack: tuple[Block, ...], done: Walks) -> Flushes:
    """When backward's gradients fill the bucket; stages 0 and 1 reduce them at its end.

    The gradient of a table that embedding and head share arrives with the embedding's.
    """
    if not plan.moves:
        return Flushes((), 0)
    head, layers = hook_sizes(done, stack, plan.trained_width, first_hook(plan))
    arch = plan.run.arch
    tables = () if plan.run.frozen else tuple(int(w.numel) for w in reversed(arch.embedding))
    return flushes(head, layers, tables, plan.bucket)


def hook_entries(
    plan: Plan, done: Walks, blocks: tuple[Block, ...], tokens_bytes: Num
) -> Iterator[Entry]:
    """Activations and the gradient that has just been made, at the first gradient and at flushes.

    Where gradients stay, the head's gradient is still there while the final norm runs backward.
    """
    first, keep = first_hook(plan), not plan.moves
    if first:
        yield _waiting(plan)
    hooks = done.head.hooks
    yield from _large(plan, done)
    for beat in plan.beats:
        name = beat.name.removeprefix("later.")
        if name == "head.gradient":
            size, act = hooks[first]
            if not first:  # the final norm's backward comes behind it
                act = larger(act, done.head.after_first - (0 if keep else size))
            yield _entry("final norm and head: kept for backward", ACT, act, beat)
            if not keep:
                yield _entry("head: gradient being made", GRAD, size, beat)
        elif name.startswith("flush."):
            flush = plan.flushes.first[int(name.rpartition(".")[2])]
            yield from _flush_entries(plan, done, blocks, beat, flush, tokens_bytes)


def _large(plan: Plan, done: Walks) -> Iterator[Entry]:
    """A layer's gradient that is larger than the bucket stays until the next one comes.

    Which one is there at the layer's highest moment is not looked at: the largest is taken.
    """
    if not (plan.moves and plan.contiguous):
        return
    limit = plan.bucket * plan.trained_width
    for index, walk in enumerate(done.layers):
        large = [int(size) for size, _ in walk.hooks if int(size) > limit]
        if large:
            live = {b.name: 1 for b in plan.beats if b.work == "layer" and b.stretch == index
                    and b.instant.phase == BACKWARD}  # fmt: skip
            yield Entry(
                name="gradient larger than the bucket, until the next comes", kind=GRAD,
                bytes=plan.run.scaled(max(large)), live=live,
                source=code("deepspeed 0.19.8 runtime/zero/stage_1_and_2.py:1443"),
            )  # fmt: skip


def _waiting(plan: Plan) -> Entry:
    """The head's part of a shared table's gradient, until the embedding's part is there.

    Where gradients stay on the rank (stages 0 and 1) the first micro-batch's is among them; the
    layers of later micro-batches have an entry of their own.
    """
    moved = plan.moves

    def live(beat: Beat) -> Num:
        name = beat.name.removeprefix("later.")
        if name == "head.gradient":
            return int(moved or beat.later)
        if name.startswith("flush."):
            return int(plan.flushes.first[int(name.rpartition(".")[2])].block != EMBEDDING)
        runs = beat.work in ("layer", "embedding") and beat.instant.phase == BACKWARD
        return int(runs and moved and not beat.later)

    found = {b.name: live(b) for b in plan.beats}
    return Entry(name="head: gradient that waits for the embedding's", kind=GRAD,
                 bytes=plan.table, live={name: n for name, n in found.items() if n},
                 source=code("torch 2.11 csrc/autograd/input_buffer.cpp"))  # fmt: skip


def _flush_entries(
    plan: Plan, done: Walks, blocks: tuple[Block, ...], beat: Beat, flush: Flush, tokens_bytes: Num
) -> Iterator[Entry]:
    if flush.block == EMBEDDING:
        size, act = plan.run.scaled(flush.arrives) * plan.width, tokens_bytes
    elif flush.block == HEAD:
        size, act = done.head.hooks[flush.hook + first_hook(plan)]
    else:
        walk = done.layers[flush.block]
        size, act = walk.hooks[flush.hook]
        if blocks[flush.block].recompute == "full":
            act = act + walk.input_bytes
    yield _entry("layer at work when the bucket is sent off", ACT, act, beat)
    yield _entry("gradient that does not go in", GRAD, size, beat)


def _entry(name: str, kind: str, size: Num, beat: Beat) -> Entry:
    return Entry(name=name, kind=kind, bytes=size, live={beat.name: 1}, source=SOURCE)
