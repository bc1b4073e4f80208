"""A card's rates, as its data sheet has them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Card(Struct, frozen=True, kw_only=True):
    """Operations, bytes of memory and bytes of the link a second, and a message's latency."""

    flops: Mapping[str, float]  # by dtype
    memory_bytes_per_second: float
    link_bytes_per_second: float
    link_seconds: float

    def rate(self, dtype: str) -> float:
        """Operations a second in a dtype; one that the card has no unit for runs in 16 bits."""
        for name in (dtype, "bf16", "fp16", "fp32"):
            if name in self.flops:
                return self.flops[name]
        return 0.0
