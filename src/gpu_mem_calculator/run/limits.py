"""What is not modelled, and how many bytes it can add or save at most."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Could = Literal["less", "more", "either"]
Bound = int | str | None
"""Bytes; a part of the estimate, by its name in `core.bounds`; None where nothing bounds it."""


class Limit(Struct, frozen=True, kw_only=True):
    """Something that is not modelled: the estimate is made without it.

    - `key`: as the user wrote it, with its value: `activation_offloading=true`
    - `why`: the end of a sentence: what it does, and how much it could matter
    - `could`: with it the run takes `less` than estimated without it, `more`, or `either`
    - `adds`, `saves`: how much more or less at most, in the directions of `could`; limits that save
      the same part of the estimate save it once
    - `settle`: how the user can settle it; by default a trace or a measurement
    """

    key: str
    why: str
    could: Could = "either"
    adds: Bound = None
    saves: Bound = None
    settle: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"


class BoundedLimit(Struct, frozen=True, kw_only=True):
    """A limit of an estimate; `adds_bytes` and `saves_bytes` are None where nothing bounds it;
    `saves_part` is the part of the estimate that it saves.
    """

    key: str
    why: str
    adds_bytes: int | None = None
    saves_bytes: int | None = None
    saves_part: str | UnsetType = UNSET
    settle: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"
