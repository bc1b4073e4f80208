"""Bytes that DeepSpeed holds beside its states at every hook point of a step.

The `ZeroRank` that writes a stream runs on a counter instead, without the tensors of blocks.
Nothing here depends on batch or sequence, so it runs once for a model, a number of ranks and a set
of options.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from msgspec import Struct

from ...step.block_events import EMBEDDING, HEAD
from .gather import FROM_HOST
from .hook_points import AFTER, BEFORE, GRADIENT, WEIGHT, HookedBlock
from .rank import GRADIENT as WEIGHT_GRADIENT
from .rank import ZeroRank
from .rank_stage3 import Stage3Bucket, Stage3Rank
from .rank_stage12 import Stage12Rank

GROUPS: dict[Hashable, int] = {
    **{WEIGHT_GRADIENT: 0, "bucket": 1, "own": 2, "sum": 2, "": 4, FROM_HOST: 5},
    **dict.fromkeys(("moment", "padded", "shard", "swapped"), 3),
}
Level = tuple[int, tuple[int, ...]]  # bytes in all, and of each group
NOTHING: Level = (0, (0,) * 6)


class CountingAllocator:
    """An allocator that counts bytes by what they are for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.groups: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Set the counts to 0; tensors that are alive stay alive."""
        self.total, self.parts = 0, [0] * 6
        self.high = NOTHING

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """Allocate a tensor with a name of `GROUPS`."""
        group = GROUPS[name]
        self.sizes.append(size)
        self.groups.append(group)
        self.parts[group] += size
        self.total += size
        if self.total > self.high[0]:
            self.high = self.now()
        return len(self.sizes) - 1

    def free(self, tensors: Iterable[int]) -> None:
        """Free tensors."""
        for tensor in tensors:
            self.parts[self.groups[tensor]] -= self.sizes[tensor]
            self.total -= self.sizes[tensor]

    def empty_cache(self) -> None:
        """A counter caches nothing."""

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self.sizes[tensor]

    def now(self) -> Level:
        """Bytes that are alive."""
        return self.total, tuple(self.parts)

    def look(self) -> Level:
        """The most bytes that were alive since the last look."""
        high, self.high = self.high, self.now()
        return high


class HookLevels(Struct, frozen=True):
    """Bytes DeepSpeed holds during one micro-batch.

    Each block has two levels for every hook point, before it and the maximum inside it, and one
    after the last.
    """

    begin: list[Level]
    forward: list[list[Level]]
    loss: list[Level]
    head: list[Level]
    backward: list[list[Level]]
    embedding: list[Level]
    epilogue: list[Level]


class ModelShape(Struct, frozen=True):
    """The blocks of a model: (forward, backward) of every layer, the head, the embedding."""

    layers: tuple[tuple[HookedBlock, HookedBlock], ...]
    head: tuple[HookedBlock, HookedBlock]
    embedding: HookedBlock | None


def _levels(
    block: HookedBlock,
    counter: CountingAllocator,
    kinds: tuple[str, str],
    run_hook: Callable[[str, int, bool], None],
) -> list[Level]:
    """Two levels for every hook point, and one after the last. Only hooks of two kinds are run."""
    levels: list[Level] = []
    level = counter.now()
    counter.high = level
    for hooks in block.passes:
        for hook in hooks:
            levels.append(level)
            if hook[0] in kinds:
                run_hook(*hook)
                levels.append(counter.look())
                level = counter.high
            else:
                levels.append(level)
        levels.append(level)
    return levels


def bucket_levels(rank: ZeroRank, counter: CountingAllocator, shape: ModelShape) -> HookLevels:
    """The levels of gradients and of the buckets that reduce them, in one micro-batch."""

    def run_block(number: int, block: HookedBlock) -> list[Level]:
        ids = [-1] * len(block.sizes)
        if block.entry >= 0:
            ids[block.entry], rank.shared = rank.shared, -1

        def run_hook(kind: str, index: int, forward: bool) -> None:
            if kind == GRADIENT:
                rank.gradient(number, index, ids[block.drops[index]])
            elif kind == WEIGHT and index >= 0:
                ids[index] = counter.make_on(0, block.sizes[index], WEIGHT_GRADIENT)
            elif kind == WEIGHT:
                counter.free((ids[~index],))

        return _levels(block, counter, (GRADIENT, WEIGHT), run_hook)

    rank.begin()
    begin = counter.now()
    counter.look()
    backward = _backward(run_block, counter, shape)
    rank.epilogue()
    forward = [[begin] * num_levels(block) for block, _ in shape.layers]
    loss = [begin] * num_levels(shape.head[0])
    return HookLevels([begin], forward, loss, *backward, [counter.look(), counter.now()])


def _backward(
    run_block: Callable[[int, HookedBlock], list[Level]],
    counter: CountingAllocator,
    shape: ModelShape,
) -> tuple[list[Level], list[list[Level]], list[Level]]:
    """The levels of the backward of head, layers and embedding."""
    head = run_block(HEAD, shape.head[1])
    layers = reversed([*enumerate(shape.layers)])
    backward = [run_block(index, block) for index, (_, block) in layers]
    table = shape.embedding
    embedding = [counter.now()] if table is None else run_block(EMBEDDING, table)
    return head, backward[::-1], embedding


def num_levels(block: HookedBlock) -> int:
    """The number of levels of a block."""
    return sum(2 * len(hooks) + 1 for hooks in block.passes)


def gather_levels(
    rank: Stage3Rank,
    counter: CountingAllocator,
    shape: ModelShape,
    *,
    small: bool,
    known: bool = True,
) -> tuple[HookLevels, int]:
    """The levels of stage 3's gathered parameters in one micro-batch, and the bytes of persistent
    parameters, which the levels leave out.

    small: persistent parameters are gathered when the micro-batch begins
    known: the order of modules has been recorded
    """

    def run_block(number: int, block: HookedBlock) -> list[Level]:
        def run_hook(kind: str, index: int, forward: bool) -> None:
            (rank.before if kind == BEFORE else rank.after)(number, index, forward=forward)

        return _levels(block, counter, (BEFORE, AFTER), run_hook)

    rank.state.traced = known
    if small:
        rank.state.gather_small()
    persistent = counter.total
    counter.reset()
    rank.begin()
    begin = counter.look()
    forward = [run_block(index, block) for index, (block, _) in enumerate(shape.layers)]
    loss = run_block(HEAD, shape.head[0])
    backward = _backward(run_block, counter, shape)
    before = counter.now()
    counter.look()
    rank.epilogue()
    return HookLevels([begin], forward, loss, *backward, [before, counter.look()]), persistent


def micro_batches(
    rank: ZeroRank, counter: CountingAllocator, shape: ModelShape, count: int
) -> list[HookLevels]:
    """The bucket levels of each micro-batch of a step; those between the first and the last are
    alike, so the count is at most three.
    """
    levels = []
    for micro in range(count):
        rank.micro = micro
        levels.append(bucket_levels(rank, counter, shape))
    return levels


BUCKETS: Sequence[type[ZeroRank]] = (ZeroRank, Stage12Rank, Stage12Rank, Stage3Bucket)
"""The class that keeps the gradient buckets of each ZeRO stage."""
