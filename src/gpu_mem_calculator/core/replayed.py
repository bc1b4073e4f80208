"""The estimate's own stream through torch's allocator: what is reserved, what a run needs."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..memory.stream import STARTUP_MARK, stream
from ..replay.allocator import Phase, replay
from ..replay.needs import needs_bytes
from ..replay.stream import Stream
from .resolve import Resolved


class Replayed(Struct, frozen=True, kw_only=True):
    """What the allocator makes of one pipeline stage; `phases` as torch's statistics have them."""

    allocated_bytes: int
    startup_bytes: int
    reserved_bytes: int
    needs_bytes: int
    phases: dict[str, Phase]


def survives(resolved: Resolved, stage: int, cap: int) -> bool:
    """Whether a stage gets through with so many bytes for torch."""
    return replay(_asked(resolved, stage), resolved.allocator, cap).failed_at is None


def _asked(resolved: Resolved, stage: int) -> Stream:
    """What a stage asks of the allocator."""
    run = replace(resolved.run, stage=stage, unrolled=True)
    return stream(resolved.engine.ledger(run), int(run.micro_batches))


def replayed(resolved: Resolved, stage: int) -> Replayed | None:
    """Replay a stage; None for an engine that writes no stream."""
    if not resolved.engine.streams:
        return None
    asked = _asked(resolved, stage)
    found = replay(asked, resolved.allocator)
    steps = [phase.peak_bytes for name, phase in found.phases.items() if name != STARTUP_MARK]
    return Replayed(
        allocated_bytes=max(steps),
        startup_bytes=found.phases[STARTUP_MARK].peak_bytes,
        reserved_bytes=found.reserved_bytes,
        needs_bytes=needs_bytes(asked, resolved.allocator),
        phases=found.phases,
    )
