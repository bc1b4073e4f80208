"""What DeepSpeed holds beside its states at every cue of a step, counted without a block's tensors.

The keepers that write a stream run on a counter instead. Nothing in it depends on batch or
sequence, so it runs once for a model, a number of ranks and a set of options.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from msgspec import Struct

from ...step.block_events import EMBEDDING, HEAD
from .gather import FROM_HOST
from .hook_points import BEFORE, BEHIND, GRADIENT, WEIGHT, HookedBlock
from .rank import GRADIENT as MADE
from .rank import ZeroRank
from .rank_stage3 import Stage3Bucket, Stage3Rank
from .rank_stage12 import Stage12Rank

GROUPS: dict[Hashable, int] = {
    MADE: 0, "bucket": 1, "own": 2, "sum": 2, "moment": 3, "padded": 3, "shard": 3, "swapped": 3,
    "": 4, FROM_HOST: 5,
}  # fmt: skip
Level = tuple[int, tuple[int, ...]]  # bytes, and the part of each group
NOTHING: Level = (0, (0,) * 6)


class CountingAllocator:
    """An allocator that counts bytes by what they are for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.groups: list[int] = []
        self.reset()

    def reset(self) -> None:
        """What is there counts as nothing."""
        self.total, self.parts = 0, [0] * 6
        self.high = NOTHING

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """A new tensor; those of DeepSpeed's states are not counted."""
        group = GROUPS.get(name, -1)
        self.sizes.append(size)
        self.groups.append(group)
        if group >= 0:
            self.parts[group] += size
            self.total += size
            if self.total > self.high[0]:
                self.high = self.now()
        return len(self.sizes) - 1

    def free(self, tensors: Iterable[int]) -> None:
        """Tensors go."""
        for tensor in tensors:
            group = self.groups[tensor]
            if group >= 0:
                self.parts[group] -= self.sizes[tensor]
                self.total -= self.sizes[tensor]

    def empty_cache(self) -> None:
        """Nothing is cached here."""

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self.sizes[tensor]

    def now(self) -> Level:
        """What is there."""
        return self.total, tuple(self.parts)

    def look(self) -> Level:
        """The most that has been there since the last look."""
        high, self.high = self.high, self.now()
        return high


class HookLevels(Struct, frozen=True):
    """A micro-batch: what is held between cues and, at its highest, at them.

    Each block has two levels for every cue (before it, and in it), and one behind the last.
    """

    begin: list[Level]
    forward: list[list[Level]]
    loss: list[Level]
    head: list[Level]
    backward: list[list[Level]]
    embedding: list[Level]
    epilogue: list[Level]


class ModelShape(Struct, frozen=True):
    """The parts of a model: (forward, backward) of every layer, the head, the embedding."""

    layers: tuple[tuple[HookedBlock, HookedBlock], ...]
    head: tuple[HookedBlock, HookedBlock]
    embedding: HookedBlock | None


def _levels(
    part: HookedBlock,
    counter: CountingAllocator,
    kinds: tuple[str, str],
    act: Callable[[str, int, bool], None],
) -> list[Level]:
    """Two for every cue, and one behind the last; only those of two kinds change anything."""
    found: list[Level] = []
    level = counter.now()
    counter.high = level
    for turn in part.turns:
        for cue in turn:
            found.append(level)
            if cue[0] in kinds:
                act(*cue)
                found.append(counter.look())
                level = counter.high
            else:
                found.append(level)
        found.append(level)
    return found


def bucket_levels(keeper: ZeroRank, counter: CountingAllocator, shape: ModelShape) -> HookLevels:
    """Gradients and the buckets they go through."""

    def played(block: int, part: HookedBlock) -> list[Level]:
        ids = [-1] * len(part.sizes)
        if part.entry >= 0:
            ids[part.entry], keeper.shared = keeper.shared, -1

        def act(kind: str, number: int, forward: bool) -> None:
            if kind == GRADIENT:
                keeper.gradient(block, number, ids[part.drops[number]])
            elif kind == WEIGHT and number >= 0:
                ids[number] = counter.make_on(0, part.sizes[number], MADE)
            elif kind == WEIGHT:
                counter.free((ids[~number],))

        return _levels(part, counter, (GRADIENT, WEIGHT), act)

    keeper.begin()
    begin = counter.now()
    counter.look()
    head = played(HEAD, shape.head[1])
    backward = [played(index, part) for index, (_, part) in reversed([*enumerate(shape.layers)])]
    embedding = [counter.now()] if shape.embedding is None else played(EMBEDDING, shape.embedding)
    keeper.epilogue()
    forward = [[begin] * num_levels(part) for part, _ in shape.layers]
    return HookLevels([begin], forward, [begin] * num_levels(shape.head[0]), head, backward[::-1],
                  embedding, [counter.look(), counter.now()])  # fmt: skip


def num_levels(part: HookedBlock) -> int:
    """How many levels a part has."""
    return sum(2 * len(turn) + 1 for turn in part.turns)


def gather_levels(
    keeper: Stage3Rank,
    counter: CountingAllocator,
    shape: ModelShape,
    *,
    small: bool,
    known: bool = True,
) -> tuple[HookLevels, int]:
    """Stage 3's parameters in a micro-batch, and the bytes of small ones, which are left out.

    `small`: those that always stay are there; `known`: so is the order of modules.
    """

    def played(block: int, part: HookedBlock) -> list[Level]:
        def act(kind: str, number: int, forward: bool) -> None:
            (keeper.before if kind == BEFORE else keeper.behind)(block, number, forward=forward)

        return _levels(part, counter, (BEFORE, BEHIND), act)

    keeper.state.traced = known
    if small:
        keeper.state.gather_small()
    always = counter.total
    counter.reset()
    keeper.begin()
    begin = counter.look()
    forward = [played(index, part) for index, (part, _) in enumerate(shape.layers)]
    loss, head = played(HEAD, shape.head[0]), played(HEAD, shape.head[1])
    backward = [played(index, part) for index, (_, part) in reversed([*enumerate(shape.layers)])]
    embedding = [counter.now()] if shape.embedding is None else played(EMBEDDING, shape.embedding)
    before = counter.now()
    counter.look()
    keeper.epilogue()
    levels = HookLevels([begin], forward, loss, head, backward[::-1], embedding,
                    [before, counter.look()])  # fmt: skip
    return levels, always


def micro_batches(
    keeper: ZeroRank, counter: CountingAllocator, shape: ModelShape, count: int
) -> list[HookLevels]:
    """The micro-batches of a step, of which those between the first and the last are alike."""
    found = []
    for micro in range(count):
        keeper.micro = micro
        found.append(bucket_levels(keeper, counter, shape))
    return found


BUCKETS: Sequence[type[ZeroRank]] = (ZeroRank, Stage12Rank, Stage12Rank, Stage3Bucket)
