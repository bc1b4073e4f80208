"""Sources: every entry of a ledger names where its figure comes from."""

from __future__ import annotations

from msgspec import Struct


class Source(Struct, frozen=True):
    """A paper's equation, a framework's line at a pinned version, or a measurement."""

    kind: str  # paper | code | measured | arithmetic
    text: str

    def __str__(self) -> str:
        return self.text if self.kind == "arithmetic" else f"{self.kind}: {self.text}"


def code(text: str) -> Source:
    """A framework's source code; `text`: its version, file and line."""
    return Source("code", text)


def measured(text: str) -> Source:
    """A measurement; `text`: device, versions, count and spread."""
    return Source("measured", text)


ARITHMETIC = Source("arithmetic", "number of elements × bytes per element")
