"""A slow and simple model of the allocator, with linked blocks as in torch, to check the fast one
on streams that were never recorded. Sizes are in bytes. It shares only rounding and the addresses
of segments with the fast one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_mem_calculator.pytorch.replay.cache import AddressSpace
from gpu_mem_calculator.pytorch.replay.rounding import UNIT, round_units, segment_units
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

MIB = 2**20
SPACE = 2**40


@dataclass(eq=False)
class Block:
    """A piece of a segment; `base`: the start of its expandable segment (None: cudaMalloc)."""

    address: int
    size: int
    pool: tuple[int, bool]  # stream, small
    base: int | None = None
    free: bool = False
    mapped: bool = True
    prev: Block | None = None
    next: Block | None = None
    since: int = 0

    @property
    def grown_size(self) -> int:
        """The size that it can grow to."""
        after = self.next
        return self.size + (after.size if after and not after.mapped else 0)

    @property
    def is_split(self) -> bool:
        """Whether it has neighbours."""
        return self.prev is not None or self.next is not None


@dataclass
class Device:
    """All blocks of a device, and torch's rules for them."""

    settings: AllocatorSettings
    cap: int | None
    blocks: list[Block] = field(default_factory=list)
    reserved: int = 0
    lookups: int = 0
    segments: int = 0
    addresses: AddressSpace = field(default_factory=AddressSpace)

    def cached(self, pool: tuple[int, bool], mapped: bool = True) -> list[Block]:
        """Free blocks of a pool, sorted by size and address."""
        free = [b for b in self.blocks if b.free and b.mapped == mapped and b.pool == pool]
        return sorted(free, key=lambda b: (b.size if mapped else 0, b.address))

    def link(self, block: Block, before: Block | None, after: Block | None) -> None:
        """Insert a block between two."""
        block.prev, block.next = before, after
        if before:
            before.next = block
        if after:
            after.prev = block
        self.blocks.append(block)

    def unlink(self, block: Block) -> None:
        """Remove a block from its list."""
        if block.prev:
            block.prev.next = block.next
        if block.next:
            block.next.prev = block.prev
        self.blocks.remove(block)

    def release(self, block: Block) -> None:
        """Mark a block as free and merge it with its neighbours."""
        block.free, block.since = True, self.lookups
        for other in (block.prev, block.next):
            if other and other.free and other.mapped == block.mapped:
                self.unlink(other)
                block.address = min(block.address, other.address)
                block.size += other.size

    def malloc(self, requested: int, stream: int) -> Block | None:
        """A block, or None when out of memory."""
        size = round_units(requested, self.settings) * UNIT
        pool = (stream, size <= MIB)
        block = self.search(size, pool) or self.new(size, pool)
        if block is None:
            return None
        rest, expandable = block.size - size, self.settings.expandable_segments
        limit = self.settings.max_split_bytes
        if rest >= UNIT if pool[1] or expandable else rest > MIB and (not limit or size < limit):
            after = Block(block.address + size, rest, pool, block.base, True, since=self.lookups)
            self.link(after, block, block.next)
            block.size = size
        block.free = False
        return block

    def search(self, size: int, pool: tuple[int, bool]) -> Block | None:
        """The smallest free block that fits, or None."""
        if not pool[1]:
            self.lookups += 1
        fits = [b for b in self.cached(pool) if b.size >= size]
        while (
            len(fits) > 1 and fits[0].base is not None and fits[1].grown_size < fits[0].grown_size
        ):
            del fits[0]
        limit, rounding = self.settings.max_split_bytes, self.settings.max_non_split_rounding_bytes
        if not fits or (limit and size < limit <= fits[0].size):
            return None
        if limit and size >= limit and fits[0].size >= size + (rounding or 20 * MIB):
            return None
        return fits[0]

    def new(self, size: int, pool: tuple[int, bool]) -> Block | None:
        """A block of a new segment, after releasing others where the cap requires it."""
        segment, settings = segment_units(size // UNIT, 20 * MIB // UNIT) * UNIT, self.settings
        if settings.memory_fraction and settings.garbage_collection_threshold and self.cap:
            self.collect(int(settings.garbage_collection_threshold * self.cap))
        if settings.expandable_segments and not settings.memory_fraction:
            block = self.expand(size, pool)
            if block is None:
                self.release_all()
                block = self.expand(size, pool)
            return block
        if self.over(segment):
            if not self.release_oversize(size, pool) or self.over(segment):
                self.release_all()
            if self.over(segment):
                return None
        if settings.expandable_segments:
            return self.expand(size, pool)
        self.reserved += segment
        block = Block(self.addresses.take(segment // (2 * MIB)) * 2 * MIB, segment, pool, free=True)
        self.blocks.append(block)
        return block

    def over(self, size: int) -> bool:
        """Whether `size` bytes more would exceed the cap."""
        return self.cap is not None and self.reserved + size > self.cap

    def release_segment(self, block: Block) -> None:
        """Return a whole segment to the driver."""
        self.blocks.remove(block)
        self.addresses.give_back(block.address // (2 * MIB), block.size // (2 * MIB))
        self.reserved -= block.size

    def release_oversize(self, size: int, pool: tuple[int, bool]) -> bool:
        """Release one large enough oversize block, or the largest ones; whether they suffice."""
        limit = self.settings.max_split_bytes
        if not limit or self.settings.expandable_segments:
            return False
        size, over = max(size, limit), [b for b in self.cached(pool) if b.size >= limit]
        enough = [b for b in over if b.size >= size]
        for block in enough[:1] or reversed(over):
            if size > 0:
                size -= block.size
                self.release_segment(block)
        return size <= 0

    def release_all(self) -> None:
        """Release all whole segments, and all free pages of expandable ones."""
        for block in [b for b in self.blocks if b.free and b.mapped]:
            if block.base is not None:
                self.unmap(block, block.base)
            elif not block.is_split:
                self.release_segment(block)

    def collect(self, threshold: int) -> None:
        """Release whole large segments of at least average age, until the threshold is reached."""
        target = self.reserved - threshold
        free = [b for b in self.blocks if b.free and not b.pool[1] and not b.is_split]
        free = [b for b in free if b.base is None]
        while target > 0 and free:
            average = sum(self.lookups - b.since for b in free) / len(free)
            old = [b for b in free if self.lookups - b.since >= average]
            free = [b for b in free if b not in old]
            for block in old:
                target -= block.size
                self.release_segment(block)

    def expand(self, size: int, pool: tuple[int, bool]) -> Block | None:
        """Map pages at the lowest address with enough free and unmapped space; None where the
        driver has too few, and those that were mapped stay.
        """
        for gap in self.cached(pool, mapped=False):
            first = gap.prev if gap.prev and gap.prev.free else gap
            space, block = 0, first
            while block and block.free:
                space, block = space + block.size, block.next  # type: ignore[assignment]
            if space >= size:
                break
        else:
            self.segments += 1
            base = self.segments * 2 * SPACE
            first = Block(base, SPACE, pool, base, True, mapped=False)
            self.blocks.append(first)
        found: Block | None = first
        if not first.mapped:
            found = self.map(first, min(size, first.size))
        while found is not None and found.size < size:
            assert found.next is not None
            found = self.map(found.next, min(size - found.size, found.next.size))
        return found

    def map(self, gap: Block, size: int) -> Block | None:
        """Map the first pages of a gap, and merge them with adjacent free blocks."""
        page = 2 * MIB if gap.pool[1] else 20 * MIB
        size = min(-(-size // page) * page, gap.size)
        if self.over(size) and not self.settings.memory_fraction:
            return None
        if gap.size > size:
            rest = Block(gap.address + size, gap.size - size, gap.pool, gap.base, True, False)
            self.link(rest, gap, gap.next)
        gap.size, gap.mapped = size, True
        self.reserved += size
        self.release(gap)
        return gap

    def unmap(self, block: Block, base: int) -> None:
        """Unmap the whole pages of a free block."""
        page = 2 * MIB if block.pool[1] else 20 * MIB
        end = block.address + block.size
        first = base + -(-(block.address - base) // page) * page
        last = base + (end - base) // page * page
        if first >= last:
            return
        if first > block.address:
            before = Block(block.address, first - block.address, block.pool, base, True)
            self.link(before, block.prev, block)
        if end > last:
            self.link(Block(last, end - last, block.pool, base, True), block, block.next)
        block.address, block.size, block.mapped = first, last - first, False
        self.reserved -= last - first
        self.release(block)
        if not block.is_split:
            self.blocks.remove(block)


def reference_history(
    stream: AllocationStream, settings: AllocatorSettings, cap: int | None
) -> list[tuple[int, int]]:
    """(allocated, reserved) bytes after each event, as `history` returns them."""
    device, allocated = Device(settings, cap), 0
    alive: dict[int, Block] = {}
    steps: list[tuple[int, int]] = []
    for event in stream.events:
        tensor = max(event, ~event)
        if stream.sizes[tensor] and event >= 0:
            block = device.malloc(stream.sizes[tensor], stream.streams[tensor])
            if block is None:
                break
            alive[tensor] = block
            allocated += block.size
        elif stream.sizes[tensor]:
            block = alive.pop(tensor)
            allocated -= block.size
            device.release(block)
        steps.append((allocated, device.reserved))
    return steps
