"""The phases of a stream, each with the instants that it visits."""

from __future__ import annotations

from msgspec import Struct


class Phase(Struct, frozen=True):
    """A part of the stream up to a mark.

    - `title`: the mark's; `names`: the names of its instants in order.
    - `kind`: the phase of its instants, "" where it has several.
    - `micro_batch`: counts from 0.
    """

    title: str
    names: list[str]
    kind: str = ""
    micro_batch: int = 0
