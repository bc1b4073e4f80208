"""The margin: what must be added to the memory that a run needs to be sure that it survives.

The replay makes the requests of a run in nearly the order in which torch makes them. Where two
swap, other blocks are split, and the run needs a little more or less. How much was measured: 239
runs on an NVIDIA H200, each tried under caps at and around what it was predicted to need
(`tests/capped_runs/trials.jsonl`). The shares cover all of each kind but two, rounded up. Of
160 other runs, drawn and tried afterwards, 149 survived with them.

No margin is needed beyond what the run reserves without a cap: then torch never has to release
memory. That figure has a spread, too, and a request that no free block fits takes a new segment.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..ledger.units import MIB
from ..run.run import Run
from ..training.engines import engine_row


class Margin(Struct, frozen=True):
    """The shares of a kind of run: of the memory that it needs, and of what it reserves, by which
    it may reserve more than predicted.
    """

    share: float
    reserved_share: float = 0.010


QUANTIZED, INFERENCE = Margin(0.040, 0.03), Margin(0.010)
SEGMENTS = 22 * MIB
"""One segment of each pool: 2 MiB for small blocks, 20 MiB for large ones."""


class _ReplayedRun(Protocol):
    @property
    def margin(self) -> Margin: ...
    @property
    def needs_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...


class WithMargin:
    """The margin of a replayed run."""

    __slots__ = ()

    @property
    def margin_bytes(self: _ReplayedRun) -> int:
        """Bytes beyond `needs_bytes` with which the run is certain to survive."""
        return margin_bytes(self.margin, self.needs_bytes, self.reserved_bytes)

    def most_margin_bytes(self: _ReplayedRun, cap: int) -> int:
        """The most that the margin is where the run needs at most `cap` bytes."""
        return int(cap * self.margin.share) + SEGMENTS

    @property
    def enough_bytes(self: _ReplayedRun) -> int:
        """Bytes with which it survives in any case, without a search for the least."""
        return enough_bytes(self.margin, self.reserved_bytes)


def margin_of(run: Run, engine: str) -> Margin:
    """The margin of a run: what it computes with or for, else its engine's."""
    if run.new_tokens is not None:
        return INFERENCE
    return QUANTIZED if run.quantization else Margin(engine_row(engine).margin)


def enough_bytes(margin: Margin, reserved: int) -> int:
    """Bytes with which torch never has to release memory, so that the run survives."""
    return reserved + int(reserved * margin.reserved_share) + SEGMENTS


def margin_bytes(margin: Margin, needs: int, reserved: int) -> int:
    """Bytes beyond `needs` with which a run is certain to survive."""
    return min(int(needs * margin.share) + SEGMENTS, enough_bytes(margin, reserved) - needs)
