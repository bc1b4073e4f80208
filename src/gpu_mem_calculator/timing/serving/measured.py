"""What public measurements of servers say: the share of the roofline bound that they reach, and
what each server adds to the seconds of its kernels.

The tables are written by docs/speed.py from tests/ground_truth/speeds.jsonl.
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


class EngineCosts(Struct, frozen=True, kw_only=True):
    """Time of an engine beside its kernels, and the speed of kernels of its own.

    - `step`: host seconds of a pass; `sequence`: of each sequence in a decode step; `request`: of
      each prompt
    - `layer`: host seconds of a layer where kernels are launched one by one; the GPU waits for them
    - `prompt_share`: speed of its kernels for prompts over that of the curves
    """

    step: float = 0.0
    sequence: float = 0.0
    request: float = 0.0
    layer: float = 0.0
    prompt_share: float = 1.0


class SecondsInterval(Struct, frozen=True):
    """Measured seconds over estimated ones: 80 % of figures are between `low` and `high`."""

    low: float
    high: float


SHARES: Mapping[str, Mapping[str, ReachedShare]] = {
    "llamacpp": {
        PROMPTS: ReachedShare(0.16, 0.03, 0.48, 36),
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
V0 = "vllm v0"  # vLLM before its V1 engine
COSTS: Mapping[str, EngineCosts] = {
    "llamacpp": EngineCosts(prompt_share=0.6),
    "sglang": EngineCosts(step=0.001, sequence=0.00004, request=0.005),
    "tensorrt_llm": EngineCosts(step=0.0005, sequence=0.00001),
    "tgi": EngineCosts(step=0.002, sequence=0.00001),
    "transformers": EngineCosts(layer=0.0006),
    "vllm": EngineCosts(step=0.0005, sequence=0.00004, request=0.002),
    V0: EngineCosts(step=0.002, sequence=0.00001),
}
AMD_SHARE = 0.5  # speed of kernels on AMD's cards over that of NVIDIA's curves, scaled
INTERVALS: Mapping[str, SecondsInterval] = {
    PROMPTS: SecondsInterval(0.68, 2.6),
    ALONE: SecondsInterval(0.71, 1.77),
    TOGETHER: SecondsInterval(0.9, 2.65),
}
