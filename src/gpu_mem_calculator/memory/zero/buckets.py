"""When backward has filled the gradient bucket and sends it off."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

HEAD, EMBEDDING = -1, -2


class Flush(Struct, frozen=True):
    """The bucket is reduced because one more gradient does not go in.

    `block` is the stretch of layers (or HEAD, EMBEDDING), `done` the layers of it that are
    behind, `hook` which gradient of the layer arrives, `arrives` its elements. `bucket` counts the
    elements that go, `largest` those of the largest gradient among them, `sent` all that have
    gone by then.
    """

    block: int
    done: int
    hook: int
    bucket: int
    largest: int
    arrives: int
    sent: int
    single: bool  # one gradient alone, which stage 3 reduces in place


class Flushes(Struct, frozen=True):
    """The first flushes of a backward, and the elements that are left for its end.

    `sent_by_layers` are the elements that have gone when the first layer's backward ends,
    `sent_before[i]` those that have gone when the last, and when the first layer of stretch i runs.
    """

    first: tuple[Flush, ...]
    rest: int
    rest_largest: int = 0
    sent_by_layers: int = 0
    rest_single: bool = False
    sent_before: tuple[tuple[int, int], ...] = ()


@lru_cache(maxsize=256)
def flushes(
    head: tuple[int, ...],
    blocks: tuple[tuple[tuple[int, ...], int], ...],
    embedding: tuple[int, ...],
    limit: int,
    keep: int = 2,
) -> Flushes:
    """Fill a bucket of `limit` elements with gradients in the order backward makes them.

    `blocks` are (sizes in a layer's backward order, layers) in forward's order. deepspeed 0.19.8
    zero/stage_1_and_2.py:1415 and zero/stage3.py:1601: a gradient that would overflow the bucket
    sends it off first; one that is larger than the bucket travels alone.
    """
    found: list[Flush] = []
    before: list[tuple[int, int]] = []
    filled = count = most = sent = 0

    def add(size: int, block: int, done: int, hook: int) -> None:
        nonlocal filled, count, most, sent
        if filled and filled + size > limit:
            sent += filled
            if len(found) < keep:
                found.append(Flush(block, done, hook, filled, most, size, sent, count == 1))
            filled = count = most = 0
        filled += size
        count += 1
        most = max(most, size)

    for hook, size in enumerate(head):
        add(size, HEAD, 0, hook)
    for index in range(len(blocks) - 1, -1, -1):
        sizes, layers = blocks[index]
        top = low = sent
        for done in range(layers):
            low = sent
            for hook, size in enumerate(sizes):
                add(size, index, done, hook)
        before.append((top, low))
    by_layers = sent
    for hook, size in enumerate(embedding):
        add(size, EMBEDDING, 0, hook)
    ends = tuple(reversed(before))
    return Flushes(tuple(found), filled, most, by_layers, count == 1, ends)
