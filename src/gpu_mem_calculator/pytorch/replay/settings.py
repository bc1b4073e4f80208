"""The allocator's settings: the value of `PYTORCH_ALLOC_CONF` (or `PYTORCH_CUDA_ALLOC_CONF`).

Source: torch 2.11 c10/core/AllocatorConfig.cpp (parseArgs) and c10/cuda/CUDAAllocatorConfig.cpp.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from ...ledger.units import MIB

INTERVALS = 16
"""Intervals between powers of two, from 1 MiB to 64 GiB, each with a number of divisions."""
OVER_SEGMENT_BYTES = 10 * MIB
"""`large_segment_size_mb` must be more than this (kMinLargeAlloc)."""
WITHOUT_EFFECT = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
        "throw_on_cudamalloc_oom",
    }
)
"""Settings of torch that do not change what is reserved on the device."""


class AllocatorSettingsError(ValueError):
    """Settings that torch would refuse. `problems` has one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class AllocatorSettings(Struct, frozen=True):
    """The settings that change memory; the defaults are torch's.

    `memory_fraction`: a cap is what set_per_process_memory_fraction allows, not the memory of a
    card. Torch's alloc_block then counts a whole request, also where an expandable segment lacks
    but a few pages; and malloc collects garbage above the threshold, which it does only then.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None  # None: as large_segment_bytes
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    large_segment_bytes: int = 20 * MIB
    memory_fraction: bool = False

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read `expandable_segments:True,max_split_size_mb:128`, as torch reads its variable."""
        fields: dict[str, Any] = {}
        problems: list[str] = []
        for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", "".join(text.split())):
            key, _, value = part.partition(":")
            try:
                fields |= _setting(key, value)
            except ValueError as error:
                problems.append(str(error))
        problems += _too_small(fields)
        if problems:
            raise AllocatorSettingsError(problems)
        return cls(**fields)


def _setting(key: str, value: str) -> dict[str, Any]:
    """One setting as a field; ValueError with a sentence where torch would refuse it."""
    if key in WITHOUT_EFFECT:
        return {}
    if key not in READERS:
        import difflib

        near = difflib.get_close_matches(key, [*READERS, *WITHOUT_EFFECT], n=1, cutoff=0.6)
        known = f"did you mean {near[0]!r}?" if near else f"try one of {', '.join(READERS)}"
        raise ValueError(f"{key!r} is no setting of the allocator; {known}")
    field, read = READERS[key]
    setting = read(key, value)
    return {field: setting} if field else {}


def _flag(key: str, value: str) -> bool:
    """A bool: `True` or `False`, spelled exactly so."""
    if value not in ("True", "False"):
        raise ValueError(f"{key}:{value} is neither True nor False; try {key}:True")
    return value == "True"


def _megabytes(key: str, value: str) -> int:
    """A whole number of MiB, as bytes."""
    if not value.isdigit():
        raise ValueError(f"{key}:{value} must be a whole number of MiB; try {key}:128")
    return int(value) * MIB


def _too_small(fields: dict[str, Any]) -> list[str]:
    """A sentence for each size below its minimum: 10 MiB for a segment, a segment for others."""
    segment = fields.get("large_segment_bytes", AllocatorSettings().large_segment_bytes)
    if segment <= OVER_SEGMENT_BYTES:
        return [f"large_segment_size_mb:{segment // MIB} must be more than 10; try 20"]
    least = f"must be at least {segment // MIB}, the size of a large segment"
    return [
        f"{key}:{size // MIB} {least}; try {key}:128"
        for key in ("max_split_size_mb", "max_non_split_rounding_mb")
        if (size := fields.get(READERS[key][0], segment)) < segment
    ]


def _threshold(key: str, value: str) -> float:
    """A share between 0 and 1, both excluded."""
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0.0 < share < 1.0:
        raise ValueError(f"{key}:{value} must be between 0 and 1; try {key}:0.8")
    return share


def _power_of_two(key: str, text: str, least: int) -> int:
    """A power of two of at least `least`; 0, where that is allowed, turns rounding off."""
    number = int(text) if text.isdigit() else -1
    if number < least or number & (number - 1):
        raise ValueError(f"{key} takes powers of two, not {text!r}; try {key}:4")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """`4`, or `[256:1,512:2,1024:4,>:8]`: divisions by the power of two of the size in MiB."""
    if not value.startswith("["):
        return (_power_of_two(key, value, 1),) * INTERVALS
    table, last, first = [0] * INTERVALS, 0, True
    for pair in value.strip("[]").split(","):
        size, _, count = pair.partition(":")
        number = _power_of_two(key, count, 0)
        if size == ">":
            table[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        last = min(_power_of_two(key, size, 1).bit_length() - 1, INTERVALS - 1)
        if first:
            table[:last] = [number] * last
        table[last], first = number, False
    return tuple(table)


def _native(key: str, value: str) -> bool:
    """Accept torch's own allocator, the only one that is modelled."""
    if value != "native":
        raise ValueError(f"{key}:{value} is not modelled; try {key}:native")
    return True


def _fraction(key: str, value: str) -> bool:
    """Accept the whole card alone: a share of it is a cap, which is given in bytes."""
    if value not in ("1", "1.0"):
        raise ValueError(f"{key}:{value} depends on the card; give the cap in bytes instead")
    return True


READERS: dict[str, tuple[str, Any]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "max_split_size_mb": ("max_split_bytes", _megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "large_segment_size_mb": ("large_segment_bytes", _megabytes),
    "backend": ("", _native),
    "per_process_memory_fraction": ("", _fraction),
}
"""For each setting of torch, the field that it sets ("": it is only checked) and its reader."""
