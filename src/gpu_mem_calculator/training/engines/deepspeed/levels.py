"""Bytes that DeepSpeed holds beside its states at every hook point of a step.

The `ZeroRank` that writes a stream runs on a counter instead, without the tensors of blocks.
Nothing here depends on batch or sequence, so it runs once for a model, a number of ranks and a set
of options.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from operator import neg, sub

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.remember import Same, remembered
from ...step.block_events import EMBEDDING, HEAD
from ...step.cycles import WIDTH
from .gather import FROM_HOST
from .gather_script import GatherScript
from .hook_points import AFTER, BEFORE, GRADIENT, WEIGHT, HookedBlock
from .rank import GRADIENT as WEIGHT_GRADIENT
from .rank import ZeroRank
from .rank_stage3 import Stage3Bucket
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


Marks = tuple[Level, ...]
"""What a block's hooks do: the level before it, then the most inside each hook, and the level after
it."""


KeptMarks = Same[Marks]


class MicroBatch(Struct, frozen=True):
    """Bytes DeepSpeed holds during one micro-batch: the marks of each block's hooks, and those of
    begin and epilogue. Equal marks are the same object.
    """

    begin: KeptMarks
    forward: list[KeptMarks]
    loss: KeptMarks
    head: KeptMarks
    backward: list[KeptMarks]
    embedding: KeptMarks
    epilogue: KeptMarks


@remembered(4096, always=True)
def kept_marks(marks: Marks) -> KeptMarks:
    """Some marks as a key."""
    return Same(marks)


class ModelShape(Struct, frozen=True):
    """The blocks of a model: (forward, backward) of every layer, the head, the embedding."""

    layers: tuple[tuple[HookedBlock, HookedBlock], ...]
    head: tuple[HookedBlock, HookedBlock]
    embedding: HookedBlock | None


@remembered(512, always=True)
def only_hooks(block: HookedBlock, *kinds: str) -> HookedBlock:
    """The block with hooks of some kinds alone, in one pass."""
    return replace(block, passes=(tuple(h for p in block.passes for h in p if h[0] in kinds),))


@remembered(512, always=True)
def mark_places(block: HookedBlock, *kinds: str) -> tuple[int, ...]:
    """Each level of a block as an index into the marks of its hooks of some kinds.

    There are two levels for every hook point, before it and the maximum inside it, and one after
    the last of a pass.
    """
    places: list[int] = []
    now = 0
    for hooks in block.passes:
        for hook in hooks:
            places.append(now)
            if hook[0] in kinds:
                places.append(now + 1)
                now += 2
            else:
                places.append(now)
        places.append(now)
    return tuple(places)


def _marks(
    block: HookedBlock, counter: CountingAllocator, run_hook: Callable[[str, int, bool], None]
) -> KeptMarks:
    """The marks of a block's hooks."""
    marks = [counter.now()]
    counter.high = marks[0]
    for hooks in block.passes:
        for hook in hooks:
            run_hook(*hook)
            marks += (counter.look(), counter.high)
    return kept_marks(tuple(marks))


BUCKET_HOOKS, GATHER_HOOKS = (GRADIENT, WEIGHT), (BEFORE, AFTER)


def bucket_marks(rank: ZeroRank, counter: CountingAllocator, shape: ModelShape) -> MicroBatch:
    """The marks of gradients and of the buckets that reduce them, in one micro-batch."""

    known: dict[Hashable, KeptMarks] = {}

    def run_block(number: int, block: HookedBlock) -> KeptMarks:
        """Of layers that find as many bytes, and room in the bucket, the first one is run."""
        hooks = chain.from_iterable(block.passes)
        made = [block.sizes[block.drops[index]] for kind, index, _ in hooks if kind == GRADIENT]
        key = id(block), counter.now()
        room = number >= 0 and rank.has_room(made)
        if not room or key not in known:
            marks = count_block(number, block)
            if room:
                known[key] = marks
            return marks
        rank.fill(made)
        counter.look()
        return known[key]

    def count_block(number: int, block: HookedBlock) -> KeptMarks:
        ids = [-1] * len(block.sizes)
        if block.entry >= 0:
            ids[block.entry], rank.shared = rank.shared, -1

        def run_hook(kind: str, index: int, forward: bool) -> None:
            if kind == GRADIENT:
                rank.gradient(number, index, ids[block.drops[index]])
            elif index >= 0:
                ids[index] = counter.make_on(0, block.sizes[index], WEIGHT_GRADIENT)
            else:
                counter.free((ids[~index],))

        return _marks(block, counter, run_hook)

    rank.begin()
    begin = kept_marks((counter.now(),))
    counter.look()
    backward = _backward(run_block, counter.now, shape)
    rank.epilogue()
    epilogue = kept_marks((counter.look(), counter.now()))
    return MicroBatch(begin, [begin] * len(shape.layers), begin, *backward, epilogue)


def _backward(
    run_block: Callable[[int, HookedBlock], KeptMarks], now: Callable[[], Level], shape: ModelShape
) -> tuple[KeptMarks, list[KeptMarks], KeptMarks]:
    """The marks of the backward of head, layers and embedding."""
    head = run_block(HEAD, shape.head[1])
    layers = reversed([*enumerate(shape.layers)])
    backward = [run_block(index, block) for index, (_, block) in layers]
    table = shape.embedding
    if table is None:
        return head, backward[::-1], kept_marks((now(),))
    embedding = run_block(EMBEDDING, table)
    return head, backward[::-1], embedding


def gather_marks(script: GatherScript, shape: ModelShape) -> MicroBatch:
    """The marks of stage 3's gathered parameters in one micro-batch, without those gathered when it
    begins.
    """
    ends = list(script.ends)
    if shape.embedding is None:
        del ends[-2]
    gathers = _GatherCounter(script, ends)
    _, begin, _ = gathers.marks(1).value

    def run_block(number: int, block: HookedBlock) -> KeptMarks:
        return gathers.marks(sum(map(len, block.passes)))

    forward = [run_block(index, block) for index, (block, _) in enumerate(shape.layers)]
    loss = run_block(HEAD, shape.head[0])
    head, layers, embedding = _backward(run_block, lambda: gathers.now, shape)
    before, high, _ = gathers.marks(1).value
    epilogue = kept_marks((before, high))
    return MicroBatch(kept_marks((begin,)), forward, loss, head, layers, embedding, epilogue)


class _GatherCounter:
    """Counts gathered bytes hook by hook; blocks that begin with as many bytes and do the same have
    the same marks.

    `changes`: by how many bytes each event changes what is gathered; `hosts`: the same of shards
    from the host; `counts`: the events of each hook.
    """

    def __init__(self, script: GatherScript, ends: list[int]) -> None:
        own = array("q", bytes(WIDTH * len(script.sizes)))
        for tensor in script.shards:
            own[tensor] = script.sizes[tensor]
        self.changes, self.hosts = (_changes(sizes, script.events) for sizes in (script.sizes, own))
        self.counts = array("q", map(sub, ends, [0, *ends]))
        self.event = self.hook = self.total = self.host = 0
        self.known: dict[Hashable, tuple[KeptMarks, int, int]] = {}

    @property
    def now(self) -> Level:
        """Bytes that are gathered."""
        return _level(self.total, self.host)

    def marks(self, hooks: int) -> KeptMarks:
        """The marks of the next block; `hooks` is the number of its hooks."""
        counts = self.counts[self.hook : self.hook + hooks]
        own = slice(self.event, self.event + sum(counts))
        done = (one.tobytes() for one in (counts, self.changes[own], self.hosts[own]))
        key = (self.total, self.host, *done)
        self.hook += hooks
        if key not in self.known:
            marks = self._count(counts)
            self.known[key] = marks, self.total, self.host
        marks, self.total, self.host = self.known[key]
        self.event = own.stop
        return marks

    def _count(self, counts: Iterable[int]) -> KeptMarks:
        """The most bytes in each hook, and those after it; `counts` are the events of each."""
        marks, event = [self.now], self.event
        for count in counts:
            high = marks[-1]
            for at in range(event, event + count):
                self.total += self.changes[at]
                self.host += self.hosts[at]
                if self.total > high[0]:
                    high = self.now
            marks += (high, self.now if count else marks[-1])
            event += count
        return kept_marks(tuple(marks))


def _changes(sizes: array[int], events: array[int]) -> array[int]:
    """By how many bytes each event changes what is alive."""
    signed = [*sizes, *map(neg, reversed(sizes))]  # the size of ~tensor is there from the end on
    return array("q", map(signed.__getitem__, events))


def _level(total: int, host: int) -> Level:
    """A level of gathered parameters; `host`: bytes of shards from the host."""
    return total, (0, 0, 0, 0, total - host, host)


BUCKETS: Sequence[type[ZeroRank]] = (ZeroRank, Stage12Rank, Stage12Rank, Stage3Bucket)
"""The class that keeps the gradient buckets of each ZeRO stage."""
