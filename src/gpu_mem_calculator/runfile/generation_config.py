"""The generation before each step of a policy, as in GRPO and RLOO: the keys of a run file."""

from typing import Literal

from msgspec import Struct

from .field_types import Count, Flag, Positive, Share, Size


class GenerationConfig(Struct, kw_only=True, omit_defaults=True):
    """Completions that the policy generates, and is then trained on."""

    prompt: Count | None = None
    new_tokens: Count | None = None
    sequences: Count | None = None
    engine: Literal["transformers", "vllm", "elsewhere"] = "transformers"
    cache_implementation: Literal["dynamic", "static"] = "dynamic"
    temperature: Positive = 1.0
    top_k: Size = 0
    top_p: Share = 1.0
    old_logprobs: Flag = False
    gpu_memory_utilization: Share | None = None
    sleep_level: Literal[0, 1, 2] = 0
    tensor_parallel_size: Count | None = None
    max_model_len: Count | None = None
