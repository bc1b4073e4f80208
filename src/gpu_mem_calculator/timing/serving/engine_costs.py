"""What engines add to the seconds of the kernels, estimated from published benchmarks.

The tables are written by docs/speed.py from tests/ground_truth/speeds.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .measured import ALONE, PROMPTS, TOGETHER


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
