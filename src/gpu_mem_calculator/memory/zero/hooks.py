"""What is at work when a weight's gradient reaches DeepSpeed's hook."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, GRAD, Entry
from ...ledger.num import Num, larger
from ...ledger.source import code
from ..activations import Walks
from ..stack import Block
from ..timeline import Beat
from .buckets import EMBEDDING, HEAD, Flush, Flushes

SOURCE = code("torch 2.11 autograd: a gradient's hook runs when its operation has let go")


def hook_sizes(done: Walks, blocks: tuple[Block, ...], width: int) -> tuple[
    tuple[int, ...], tuple[tuple[tuple[int, ...], int], ...]
]:  # fmt: skip
    """Elements of the head's and of each stretch's gradients, in backward's order."""
    head = tuple(int(size) // width for size, _ in done.head.hooks)
    layers = tuple(
        (tuple(int(size) // width for size, _ in walk.hooks), int(block.count))
        for walk, block in zip(done.layers, blocks, strict=True)
    )
    return head, layers


def hook_entries(
    done: Walks, blocks: tuple[Block, ...], beats: tuple[Beat, ...], sent: Flushes,
    tokens_bytes: Num, *, keep: bool,
) -> Iterator[Entry]:  # fmt: skip
    """Activations and the gradient that has just been made, at the first gradient and at flushes.

    With `keep` (stage 1) the head's gradient is still there while the final norm runs backward.
    """
    hooks = done.head.hooks
    for beat in beats:
        name = beat.name.removeprefix("later.")
        if name == "head.gradient":
            act = larger(hooks[0][1], done.head.after_first) if keep else hooks[0][1]
            yield _entry("final norm and head: kept for backward", ACT, act, beat)
            if not keep:
                yield _entry("head: gradient being made", GRAD, hooks[0][0], beat)
        elif name.startswith("flush."):
            flush = sent.first[int(name.rpartition(".")[2])]
            yield from _flush_entries(done, blocks, beat, flush, tokens_bytes)


def _flush_entries(
    done: Walks, blocks: tuple[Block, ...], beat: Beat, flush: Flush, tokens_bytes: Num
) -> Iterator[Entry]:
    size: Num = 0
    if flush.block == EMBEDDING:
        act: Num = tokens_bytes
    elif flush.block == HEAD:
        size, act = done.head.hooks[flush.hook]
    else:
        walk = done.layers[flush.block]
        size, act = walk.hooks[flush.hook]
        if blocks[flush.block].recompute == "full":
            act = act + walk.input_bytes
    yield _entry("layer at work when the bucket is sent off", ACT, act, beat)
    yield _entry("gradient that does not go in", GRAD, size, beat)


def _entry(name: str, kind: str, size: Num, beat: Beat) -> Entry:
    return Entry(name=name, kind=kind, bytes=size, live={beat.name: 1}, source=SOURCE)
