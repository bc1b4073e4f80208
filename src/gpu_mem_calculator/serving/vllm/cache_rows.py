"""Bytes of a token's keys and values, and bits of a recurrent state, by cache dtype and version."""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...models.arch.blocks import LatentAttention, Mixer, Recurrence, StateSpace
from ...run.run import Run
from ...run.weights.shards import ServerShard
from ...training.generation.kv_cache import RowBytes, unscaled_row
from .speculative import tokens_ahead
from .versions import version

BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8}
SCALE_BYTES = 4  # int8 and int4: an fp32 scale for each token and head, key and value
SPARSE_FP8 = 656  # DeepSeek's fp8 layout: 512 fp8, 4 fp32 scales, 64 of 16 bits
# Models whose scanned state is in fp32 whatever the weights are in, by first version.
WIDE_STATES = {"qwen3_5": (0, 17, 0), "nemotron_h": (0, 20, 0), "kimi_linear": (0, 11, 0)}


def cache_dtype(run: Run) -> str:
    """The type of keys and values; `auto`: the checkpoint's, otherwise the model's dtype.

    vllm 0.14.0 vllm/utils/torch_utils.py resolve_kv_cache_dtype_string (modelopt), 0.15.0
    vllm/attention/layer.py (compressed-tensors).
    """
    dtype = str(run.options["kv_cache_dtype"])
    if dtype != "auto":
        return dtype
    config = run.quantized or {}
    method, inner = str(config.get("quant_method", "")), config.get("quantization") or config
    scheme = config.get("kv_cache_scheme") or inner.get("kv_cache_scheme")
    algorithm = inner.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algo")
    if method == "compressed-tensors" and scheme and version(run) >= (0, 15, 0):
        return "fp8"
    if method.startswith("modelopt") and version(run) >= (0, 14, 0):
        read = scheme if isinstance(scheme, dict) else {}
        static_fp8 = read.get("num_bits") == 8 and not read.get("dynamic")
        if static_fp8 or str(algorithm).lower().startswith("fp8"):
            return "fp8"
    return "auto"


def cache_row(run: Run) -> RowBytes:
    """Function from elements of one head's key or value to bytes."""
    name = cache_dtype(run)
    if name in ("int8", "int4"):
        return lambda elements: elements * (8 if name == "int8" else 4) // 8 + SCALE_BYTES
    if name == "nvfp4":  # vllm 0.20.0 vllm/utils/torch_utils.py nvfp4_kv_cache_full_dim
        return lambda elements: elements // 2 + elements // 16
    return unscaled_row(BITS[run.precision.partition("_")[0] if name == "auto" else name])


def sparse_row(run: Run) -> RowBytes:
    """DeepSeek-V3.2's latent: a special fp8 layout, except for FlashInfer's kernels on Blackwell.

    vllm 0.11.0 models/config.py DeepseekV32ForCausalLM: fp8 by default; since 0.11.1 16 bits by
    default.
    """
    name = cache_dtype(run)
    fp8 = name == "fp8" or (name == "auto" and version(run) < (0, 11, 1))
    flashinfer = version(run) >= (0, 18, 0) and run.compute_capability.startswith("10.")
    return (lambda _: SPARSE_FP8) if fp8 and not flashinfer else cache_row(run)


def latent_bytes(run: Run, mixer: LatentAttention, shard: ServerShard) -> int:
    """Bytes of one token of latent attention.

    Until 0.7.0 keys and values of every head were kept (vllm 0.6.6 vllm/config.py get_head_size:
    padded to 256), then with other quantizations than fp8 until 0.7.2. 0.7.2 and 0.7.3 align a
    token to 256 bytes (vllm/worker/cache_engine.py).
    """
    vllm_version, row = version(run), sparse_row(run) if mixer.index else cache_row(run)
    quantization = run.options.get("quantization", "none")
    unpacked = vllm_version < (0, 7, 3) and quantization not in ("none", "fp8")
    if vllm_version < (0, 7, 1) or unpacked:
        size = 256 if vllm_version < (0, 7, 0) else mixer.nope_dim + mixer.rope_dim
        return 2 * shard.kv_heads(mixer.heads) * row(size)
    elements = mixer.kv_rank + mixer.rope_dim
    if (0, 7, 2) <= vllm_version < (0, 8, 0):
        elements = int(ceil_div(elements * 2, 256)) * 256 // 2
    return row(elements)


def state_bits(run: Run) -> int:
    """Bits of an element of a scanned state."""
    for family, since in WIDE_STATES.items():
        if run.arch.family.startswith(family) and version(run) >= since:
            return 32
    return BITS[run.precision.partition("_")[0]]


def with_draft_inputs(run: Run, mixer: Mixer) -> Mixer:
    """The mixer with one more convolution input for each draft token."""
    drafts = tokens_ahead(run)
    if isinstance(mixer, StateSpace) and mixer.version == 2 and version(run) >= (0, 27, 0):
        return replace(mixer, conv=mixer.conv + drafts)
    if isinstance(mixer, Recurrence) and mixer.kind in ("gated_delta", "delta"):
        return replace(mixer, conv=mixer.conv + drafts)
    return mixer
