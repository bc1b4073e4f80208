"""Who says so: every byte in a ledger names where its figure comes from."""

from __future__ import annotations

from msgspec import Struct


class Source(Struct, frozen=True):
    """A paper's equation, a framework's line at a pinned version, or a measurement."""

    kind: str  # paper | code | measured | arithmetic
    text: str

    def __str__(self) -> str:
        return self.text if self.kind == "arithmetic" else f"{self.kind}: {self.text}"


def code(text: str) -> Source:
    """A framework's source, with its version and place."""
    return Source("code", text)


def measured(text: str) -> Source:
    """A measurement, with device, versions, count and spread."""
    return Source("measured", text)


ARITHMETIC = Source("arithmetic", "number of elements × bytes per element")
