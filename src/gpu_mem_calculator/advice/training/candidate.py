"""A change of a run that may be worth trying."""

from __future__ import annotations

from msgspec import Struct


class Candidate(Struct, frozen=True):
    """A change to try: its title, its settings in `--set` notation, and what it costs in words.

    `weight` ranks the cost: 1 next to nothing, 2 speed, 3 and more another training or hardware.
    """

    title: str
    settings: tuple[str, ...]
    cost: str = ""
    weight: int = 1
