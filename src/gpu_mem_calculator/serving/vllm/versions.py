"""vLLM's version and engine generation, and the changes between versions.

V0 ended with 0.10. V1 is the default from 0.8 on, and was optional from 0.6.4 on.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ...ledger.frameworks import VLLM
from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Moe
from ...run.run import Run

Version = tuple[int, int, int]
NEWEST = VLLM.version  # newer ones are treated as this one
FIRST, FIRST_V1, LAST_V0 = VLLM.oldest_numbers, (0, 8, 0), (0, 10, 2)
EARLY_V1 = (0, 6, 4)
PLUGIN_FROM = (0, 28, 0)  # bitsandbytes is a package of its own from here on
LAST_VERSIONS = {"v0": ".".join(map(str, LAST_V0))}  # by engine generation
# As people write it: `0.11`, `v0.15.2rc1`, `vLLM 0.9.1`, `~0.11.1`, `>=0.21`.
NUMBER = r"(?:vllm\s*)?(?:~=?|>=|==|=)?\s*v?(\d+)(?:\.(\d+))?(?:\.(\d+))?"


@lru_cache(maxsize=256)
def parse_version(text: str) -> Version | None:
    """Major, minor and patch of a version as people write it; None if it is not a version.

    Missing numbers are 0; suffixes such as `.post1` and `rc2` are ignored.
    """
    match = re.match(NUMBER, text.strip(), re.IGNORECASE)
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def version(run: Run) -> Version:
    """The run's version of vLLM; (0, 0, 0) if it cannot be read."""
    return parse_version(str(run.options["engine_version"])) or (0, 0, 0)


def v1(run: Run) -> bool:
    """Whether the V1 engine runs: as `engine_generation` says, by default from 0.8 on."""
    generation = run.options.get("engine_generation")
    return version(run) >= FIRST_V1 if generation is None else str(generation).lower() == "v1"


# The GPU worker of 2026 ("V2 model runner") runs these families from these versions on.
# vllm 0.22.0 to 0.33.0 vllm/config/vllm.py use_v2_model_runner.
SECOND_RUNNER = (
    ((0, 22, 0), ("qwen3",)),
    ((0, 23, 0), ("qwen3", "llama", "mistral")),
    ((0, 24, 0), ("qwen3", "llama", "mistral", "deepseek_v2", "qwen2_moe", "granitemoe")),
)
SECOND_RUNNER_FOR_ALL = (0, 25, 0)  # dense models with attention alone, and these:
SECOND_RUNNER_EXPERTS = ("deepseek_v2", "qwen2_moe", "granitemoe")
SECOND_RUNNER_ALWAYS = (0, 29, 0)


def uses_second_runner(run: Run) -> bool:
    """Whether the newer GPU worker runs the model; before 0.24 not with quantized weights."""
    now, family = version(run), run.arch.family
    if not v1(run) or now < SECOND_RUNNER[0][0]:
        return False
    if now >= SECOND_RUNNER_ALWAYS:
        return True
    if now >= SECOND_RUNNER_FOR_ALL:
        return family in SECOND_RUNNER_EXPERTS or all(map(_is_dense_attention, run.arch.runs))
    if now < (0, 24, 0) and run.options.get("quantization", "none") != "none":
        return False
    families = next(names for since, names in reversed(SECOND_RUNNER) if now >= since)
    return family in families


def _is_dense_attention(run: tuple[Layer, int, int]) -> bool:
    """Whether a layer has neither experts nor recurrent states."""
    mixers = all(isinstance(mixer, Attention | LatentAttention) for mixer in run[0].mixers)
    return mixers and not isinstance(run[0].mlp, Moe)
