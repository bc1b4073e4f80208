"""The share of the roofline bound that public measurements reach, by engine.

The table is written by docs/speed.py from tests/ground_truth/speeds.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

PROMPTS, ALONE, TOGETHER = "prompts", "alone", "together"


class ReachedShare(Struct, frozen=True):
    """Measured speed over its bound: median, least and most of `count` measurements."""

    median: float
    least: float
    most: float
    count: int


SHARES: Mapping[str, Mapping[str, ReachedShare]] = {
    "llamacpp": {
        PROMPTS: ReachedShare(0.16, 0.03, 0.49, 36),
        ALONE: ReachedShare(0.69, 0.31, 0.89, 40),
    },
    "sglang": {
        PROMPTS: ReachedShare(0.22, 0.19, 0.27, 4),
        ALONE: ReachedShare(0.23, 0.1, 0.39, 36),
        TOGETHER: ReachedShare(0.15, 0.07, 0.64, 12),
    },
    "tensorrt_llm": {
        PROMPTS: ReachedShare(0.44, 0.18, 0.74, 24),
        ALONE: ReachedShare(0.34, 0.05, 0.64, 3),
        TOGETHER: ReachedShare(0.4, 0.05, 0.79, 132),
    },
    "tgi": {
        PROMPTS: ReachedShare(0.24, 0.21, 0.88, 9),
        ALONE: ReachedShare(0.41, 0.3, 0.7, 7),
        TOGETHER: ReachedShare(0.25, 0.15, 0.56, 4),
    },
    "transformers": {ALONE: ReachedShare(0.17, 0.02, 0.55, 11)},
    "vllm": {
        PROMPTS: ReachedShare(0.31, 0.07, 0.64, 38),
        ALONE: ReachedShare(0.39, 0.06, 0.73, 37),
        TOGETHER: ReachedShare(0.24, 0.06, 0.65, 43),
    },
}
