"""What each release of Ollama has: a build of llama.cpp, families of its own engine, defaults.

Ollama 0.32.15 and the releases before: llm/llama.cpp and LLAMA_CPP_VERSION; fs/ggml/ggml.go
OllamaEngineRequired, SupportsFlashAttention, FlashAttention; envconfig/config.go; server/routes.go,
server/sched.go.
"""

from __future__ import annotations

from bisect import bisect_right

from ...ledger.units import GIB
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention
from ...run.releases import Version
from .cache import head_sizes

BY_SERVER: Version = (0, 30, 0)  # llama-server runs, and fits by itself
# The llama.cpp build of each release: llm/llama.cpp, llama/build-info.cpp, LLAMA_CPP_VERSION.
BUILDS: tuple[tuple[Version, int], ...] = (
    ((0, 1, 29), 2356),
    ((0, 1, 30), 2527),
    ((0, 1, 32), 2679),
    ((0, 1, 33), 2771),
    ((0, 1, 39), 2986),
    ((0, 1, 40), 3051),
    ((0, 1, 45), 3171),
    ((0, 2, 0), 3340),
    ((0, 2, 8), 3440),
    ((0, 3, 1), 3485),
    ((0, 3, 4), 3535),
    ((0, 3, 10), 3661),
    ((0, 3, 14), 3863),
    ((0, 5, 2), 4260),
    ((0, 5, 3), 4327),
    ((0, 5, 8), 4419),
    ((0, 5, 13), 4783),
    ((0, 6, 6), 5125),
    ((0, 6, 7), 5162),
    ((0, 6, 8), 5237),
    ((0, 7, 0), 5359),
    ((0, 11, 5), 6121),
    ((0, 12, 4), 6646),
    ((0, 12, 6), 6752),
    ((0, 12, 11), 6840),
    ((0, 13, 2), 7209),
    ((0, 13, 3), 7345),
    ((0, 13, 5), 7437),
    ((0, 30, 0), 9452),
    ((0, 30, 1), 9479),
    ((0, 30, 4), 9493),
    ((0, 30, 5), 9509),
    ((0, 30, 9), 9626),
    ((0, 30, 10), 9672),
    ((0, 30, 11), 9781),
    ((0, 31, 0), 9840),
    ((0, 31, 2), 9888),
    ((0, 32, 2), 10069),
    ((0, 32, 3), 10091),
    ((0, 32, 6), 10242),
    ((0, 32, 8), 10353),
    ((0, 32, 10), 10380),
    ((0, 32, 14), 10434),
    ((0, 32, 15), 10488),
)
# Families of its own engine, by the names of transformers, and since when; the others' are
# llama.cpp's.
OWN_ENGINE: dict[str, Version] = {
    **dict.fromkeys(("gemma3", "gemma3_text"), (0, 6, 0)),
    "mistral3": (0, 6, 5),
    **dict.fromkeys(("llama4", "llama4_text"), (0, 6, 7)),
    **dict.fromkeys(("mllama", "mllama_text_model", "qwen2_5_vl"), (0, 7, 0)),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), (0, 9, 3)),
    "gpt_oss": (0, 11, 0),
    "qwen3": (0, 12, 0),
    "qwen3_moe": (0, 12, 2),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), (0, 12, 7)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), (0, 13, 0)),
    "olmo3": (0, 13, 4),
    **dict.fromkeys(("glm4_moe_lite", "lfm2"), (0, 14, 3)),
    "qwen3_next": (0, 15, 5),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "nemotron_h", "lfm2_moe"), (0, 17, 1)),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), (0, 17, 1)),
    **dict.fromkeys(("gemma4", "gemma4_text"), (0, 20, 0)),
}
# What a family is called where the model sees images: another architecture in Ollama's files.
WITH_TOWER = {
    "mistral": "mistral3",
    "qwen2": "qwen2_5_vl",
    "qwen3": "qwen3_vl",
    "qwen3_moe": "qwen3_vl_moe",
}
NOT_OWN = {("qwen3", (0, 12, 5))}  # taken out for one release
# Families of its own engine that have flash attention by default, and since when.
WITH_FLASH: dict[str, Version] = {
    "gpt_oss": (0, 11, 8),
    **dict.fromkeys(("qwen3", "qwen3_moe"), (0, 12, 4)),
    **dict.fromkeys(("gemma3", "gemma3_text"), (0, 12, 6)),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), (0, 12, 8)),
    "mistral3": (0, 13, 2),
    "olmo3": (0, 13, 4),
    **dict.fromkeys(("glm4_moe_lite", "lfm2"), (0, 14, 3)),
    "qwen3_next": (0, 15, 5),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "nemotron_h", "lfm2_moe"), (0, 17, 1)),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), (0, 17, 1)),
    **dict.fromkeys(("gemma4", "gemma4_text"), (0, 20, 4)),
}
FLASH_AUTO: Version = (0, 13, 5)  # llama.cpp decides on flash attention for its models
# Families without flash attention in these releases, also where it is asked for.
NO_FLASH: dict[str, tuple[Version, Version]] = {
    "gpt_oss": ((0, 11, 2), (0, 11, 5)),
    "gemma2": ((0, 11, 11), BY_SERVER),
}
# Tokens of one request where nobody says it, from a release on; 0: by the memory of all GPUs.
CONTEXTS: tuple[tuple[Version, int], ...] = (
    ((0, 0, 0), 2_048),
    ((0, 6, 7), 4_096),
    ((0, 15, 5), 0),
)
BY_MEMORY = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))
LEAST_CONTEXTS: dict[str, tuple[int, Version]] = {"gpt_oss": (8_192, (0, 15, 5))}  # until
# Requests at once where nobody says it, from a release on; the most that fits on the GPUs is taken.
SLOTS: tuple[tuple[Version, tuple[int, ...]], ...] = (
    ((0, 0, 0), (1,)),
    ((0, 2, 0), (4, 1)),
    ((0, 6, 7), (2, 1)),
    ((0, 10, 0), (1,)),
)
# Tokens above which a batch is the default, from 0.30 on (generationBatchForContext); before 512.
BATCHES = ((32_768, 2_048), (4_096, 1_024), (0, 512))


def llama_build(release: Version) -> int:
    """The llama.cpp build that a release has."""
    place = bisect_right([since for since, _ in BUILDS], release)
    return BUILDS[max(place - 1, 0)][1]


def family_of(arch: Arch) -> str:
    """The family of a model's file in Ollama's library."""
    return WITH_TOWER.get(arch.family, arch.family) if arch.tower_parameters else arch.family


def own_engine(family: str, release: Version) -> bool:
    """Whether Ollama's own engine runs a family."""
    since = OWN_ENGINE.get(family, BY_SERVER)
    return since <= release < BY_SERVER and (family, release) not in NOT_OWN


def flash_is_automatic(arch: Arch, release: Version) -> bool:
    """Whether flash attention is on where there is a kernel and nobody says it."""
    if release >= BY_SERVER or (release >= FLASH_AUTO and not own_engine(family_of(arch), release)):
        return True
    return release >= WITH_FLASH.get(family_of(arch), BY_SERVER) and allows_flash(arch, release)


def allows_flash(arch: Arch, release: Version) -> bool:
    """Whether a release turns flash attention on where it is asked for."""
    if release >= BY_SERVER:
        return True
    since, until = NO_FLASH.get(arch.family, (BY_SERVER, BY_SERVER))
    mixers = (layer.mixer for layer, _, _ in arch.runs)
    kept = (head_sizes(one) for one in mixers if isinstance(one, Attention | LatentAttention))
    return not since <= release < until and all(len(set(sizes)) == 1 for sizes in kept)


def default_context(arch: Arch, release: Version, gpu_bytes: int) -> int:
    """Tokens of one request where nobody says it, at most the model's; `gpu_bytes` of all GPUs."""
    place = bisect_right([since for since, _ in CONTEXTS], release)
    tokens = CONTEXTS[place - 1][1]
    tokens = tokens or next(size for least, size in BY_MEMORY if gpu_bytes >= least)
    least, until = LEAST_CONTEXTS.get(arch.family, (0, release))
    if release < until:
        tokens = max(tokens, least)
    return min(tokens, arch.max_seq_len)


def default_slots(release: Version) -> tuple[int, ...]:
    """The numbers of requests at once that a release tries, the first that fits on GPUs."""
    return SLOTS[bisect_right([since for since, _ in SLOTS], release) - 1][1]


def default_batch(release: Version, context: int) -> int:
    """Tokens of a batch where nobody says it."""
    if release < BY_SERVER:
        return BATCHES[-1][1]
    return next((size for least, size in BATCHES if context > least), BATCHES[-1][1])
