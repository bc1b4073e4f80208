"""What a replay finds: torch's statistics of each phase, and of the whole stream."""

from __future__ import annotations

from msgspec import Struct


class ReplayPhase(Struct, frozen=True):
    """Torch's statistics at the end of a phase, where peaks are reset at the start of each phase.

    - peak_bytes: max_memory_allocated
    - start_next_bytes: memory_allocated
    - reserved_bytes: max_memory_reserved
    """

    peak_bytes: int
    start_next_bytes: int
    reserved_bytes: int


class Footprint(Struct, frozen=True):
    """The result of a replay.

    - allocated_bytes, reserved_bytes: peaks of the whole stream
    - phases: statistics of each phase
    - retries: num_alloc_retries, how often all cached segments were released
    - failed_at: the index of the event that ran out of memory, or None
    """

    allocated_bytes: int
    reserved_bytes: int
    phases: dict[str, ReplayPhase]
    retries: int = 0
    failed_at: int | None = None


class CapOutcome(Struct, frozen=True):
    """The outcome of replays under caps from `most_under` up to, not including, `least_over`, in
    units.

    `failed_at`: the index of the event that runs out of memory, None where none does.
    """

    most_under: int
    least_over: int
    failed_at: int | None
    peak_reserved: int

    @property
    def survives(self) -> bool:
        """Whether no event runs out of memory."""
        return self.failed_at is None
