"""Advice: what another setting of the allocator would save."""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.units import GIB
from .needs import needs_bytes
from .settings import AllocatorSettings
from .stream import AllocationStream

WORTHWHILE = 0.01
"""The least saving that is mentioned, as a share."""


def advise(
    stream: AllocationStream, settings: AllocatorSettings | None = None, needs: int | None = None
) -> str:
    """A sentence where `expandable_segments:True` lets the run survive in over 1 % less, else "".

    `needs`: bytes that the run needs with its own settings, if known.
    """
    settings = settings or AllocatorSettings()
    if settings.expandable_segments:
        return ""
    now = needs_bytes(stream, settings) if needs is None else needs
    then = needs_bytes(stream, replace(settings, expandable_segments=True))
    least, most = f"{then / GIB:.1f}", f"{now / GIB:.1f}"
    if now - then <= WORTHWHILE * now or least == most:
        return ""
    return f"`expandable_segments:True` lets this run survive in {least} instead of {most} GiB"
