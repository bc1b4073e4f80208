"""A card's rates from its data sheet."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

# Units that no data sheet names: llama.cpp's products of quantized weights run on the faster of the
# 8-bit integer and the 16-bit unit; its 16-bit products may be summed in 16 bits.
QUANTIZED, SHORT_SUM = "int8 or fp16", "fp16, summed in 16 bits"


class CardRates(Struct, frozen=True, kw_only=True):
    """What a card can do in a second, and how long a message takes.

    - `flops`: operations a second, by dtype
    - `link_seconds`: latency of one message between cards
    - `adds_up`: the switch between the cards can sum what they send (NVLink SHARP)
    """

    flops: Mapping[str, float]
    memory_bytes_per_second: float
    link_bytes_per_second: float
    link_seconds: float
    adds_up: bool = False

    def rate(self, unit: str) -> float:
        """Operations a second of a unit; where the card has none, products run in 16 bits."""
        if unit == QUANTIZED:
            return max(self.flops.get("int8", 0.0), self.rate(SHORT_SUM))
        if unit == SHORT_SUM:
            # GeForce cards are half as fast where the sums are in 32 bits, and their 16-bit sums
            # run at half the rate of 8-bit integers, as all 16-bit products do elsewhere
            most = self.flops.get("int8", 0.0) / 2 if "fp16" in self.flops else 0.0
            return max(self.rate("fp16"), most)
        for name in (unit, "bf16", "fp16", "fp32"):
            if name in self.flops:
                return self.flops[name]
        return 0.0
