"""Smaller formats and limits that people try first on a server."""

from __future__ import annotations

from msgspec import Struct

LESS_EXACT = "weights are less exact"


class FormatChange(Struct, frozen=True):
    """One key with another value.

    - `axis`: changes of one axis exclude each other
    - `engines`: the engines that take the value, where not all that have the key do
    - `gains`: it leaves more memory for users, so it is offered to a server that fits, too
    """

    axis: str
    key: str
    value: str
    title: str
    cost: str
    engines: tuple[str, ...] = ()
    gains: bool = True

    @property
    def setting(self) -> str:
        """The change in `--set` notation."""
        return f"inference.{self.key}={self.value}"


FORMATS = (
    FormatChange("cache", "kv_cache_dtype", "fp8", "KV cache in fp8", "attention is less exact"),
    FormatChange(
        "cache", "kv_cache_dtype", "int8", "KV cache in q8_0", "less exact", ("llamacpp",)
    ),
    FormatChange("weights", "quantization", "fp8", "weights in fp8", LESS_EXACT),
    FormatChange("weights", "quantization", "awq", "weights in AWQ", "needs an AWQ checkpoint"),
    FormatChange("weights", "quantization", "nf4", "weights in nf4", "slower", ("transformers",)),
    FormatChange(
        "weights", "quantization", "q4_k_m", "weights in q4_k_m", LESS_EXACT, ("llamacpp",)
    ),
    FormatChange("weights", "quantization", "q2_k", "weights in q2_k", LESS_EXACT, ("llamacpp",)),
    FormatChange(
        "share",
        "gpu_memory_utilization",
        "0.95",
        "0.95 of the GPU",
        "less memory stays free",
        ("vllm",),
        gains=False,
    ),
    FormatChange(
        "batch",
        "max_num_batched_tokens",
        "2048",
        "prefill by 2,048",
        "slower prefill",
        ("vllm",),
        gains=False,
    ),
    FormatChange(
        "slots",
        "max_num_seqs",
        "64",
        "64 concurrent sequences",
        "fewer users",
        ("vllm",),
        gains=False,
    ),
)
