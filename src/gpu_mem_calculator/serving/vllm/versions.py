"""Which vLLM it is: its version, its engine, and what changed when.

V0 came to its end with 0.10; V1 is the default from 0.8 on, and could be asked for from 0.6.4 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...model.arch import Layer
from ...model.blocks import Attention, LatentAttention, Moe
from ...run.run import Run

Version = tuple[int, int, int]
NEWEST = "0.32.0"  # the newest whose source was read; what is newer is taken for it
FIRST, FIRST_V1, LAST_V0 = (0, 4, 0), (0, 8, 0), (0, 10, 2)
EARLY_V1 = (0, 6, 4)
ENDED = {
    "v0": ".".join(map(str, LAST_V0))
}  # the newest version with an engine that came to its end
# As people write it: `0.11`, `v0.15.2rc1`, `vLLM 0.9.1`, `~0.11.1`, `>=0.21`.
NUMBER = re.compile(r"(?:vllm\s*)?(?:~=?|>=|==|=)?\s*v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", re.I)


def parsed(text: str) -> Version | None:
    """Major, minor and patch; what is left out is 0, and what follows (`.post1`, `rc2`) is too."""
    found = NUMBER.match(text.strip())
    if found is None:
        return None
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


def version(run: Run) -> Version:
    """The version that is asked for."""
    return parsed(str(run.options["engine_version"])) or (0, 0, 0)


def v1(run: Run) -> bool:
    """Whether the V1 engine runs; where nobody says, it does from 0.8 on."""
    given = run.options.get("engine_generation")
    return version(run) >= FIRST_V1 if given is None else str(given).lower() == "v1"


def problems(run: Run) -> Iterator[str]:
    """Versions that there are not."""
    text, given = run.options["engine_version"], run.options.get("engine_generation")
    found = parsed(str(text))
    if found is None:
        yield f"inference.engine_version={text!r} is not a version; use one such as '{NEWEST}'"
        return
    if found < FIRST:
        yield f"inference.engine_version={text!r} is not modelled; use 0.4.0 or newer"
    named = given if given is None else str(given).lower()
    if named not in (None, "v0", "v1"):
        yield f"inference.engine_generation={given!r} must be 'v0' or 'v1'"
    elif named == "v0" and found > LAST_V0:
        yield f"vLLM {text} has no V0 engine; leave inference.engine_generation out"
    elif named == "v1" and found < EARLY_V1:
        yield f"vLLM {text} has no V1 engine; leave inference.engine_generation out"


# The GPU worker of 2026 ("V2 model runner") runs a version's models by family and kind: since
# when, and for which. vllm 0.22.0 to 0.32.0 vllm/config/vllm.py use_v2_model_runner.
SECOND_RUNNER = (
    ((0, 22, 0), ("qwen3",)),
    ((0, 23, 0), ("qwen3", "llama", "mistral")),
    ((0, 24, 0), ("qwen3", "llama", "mistral", "deepseek_v2", "qwen2_moe", "granitemoe")),
)
SECOND_RUNNER_FOR_ALL = (0, 25, 0)  # dense models without states, and these:
SECOND_RUNNER_EXPERTS = ("deepseek_v2", "qwen2_moe", "granitemoe")
SECOND_RUNNER_ALWAYS = (0, 29, 0)


def second_runner(run: Run) -> bool:
    """Whether the newer GPU worker runs it; until 0.23 not with quantized weights."""
    now, family = version(run), run.arch.family
    if not v1(run) or now < SECOND_RUNNER[0][0]:
        return False
    if now >= SECOND_RUNNER_ALWAYS:
        return True
    if now >= SECOND_RUNNER_FOR_ALL:
        return family in SECOND_RUNNER_EXPERTS or all(map(_plain, run.arch.runs))
    if now < (0, 24, 0) and run.options.get("quantization", "none") != "none":
        return False
    families = next(names for since, names in reversed(SECOND_RUNNER) if now >= since)
    return family in families


def _plain(run: tuple[Layer, int, int]) -> bool:
    """No experts, no states."""
    mixers = all(isinstance(mixer, Attention | LatentAttention) for mixer in run[0].mixers)
    return mixers and not isinstance(run[0].mlp, Moe)
