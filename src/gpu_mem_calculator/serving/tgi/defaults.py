"""TGI's defaults by version: wiggle room, attention kernels, request lengths, prefill tokens.

Files are those of text-generation-inference 3.3.7.
"""

from __future__ import annotations

from ...ledger.units import MIB
from ...models.arch.blocks import Attention, LatentAttention, Moe
from ...run.run import Run
from .versions import version

# TGI_WIGGLE_ROOM by first version (server/text_generation_server/models/globals.py). Before 3.0
# it is a share of free memory, since then of the card; before 1.4.1 there is none
# (flash_causal_lm.py warmup, at the tags 1.0.0 to 1.4.1).
WIGGLE = (
    *(((3, 3), 0.90), ((3, 1), 0.93), ((3, 0), 0.95), ((2, 4), 0.90), ((1, 4, 1), 0.95)),
    ((0, 0), 1.0),
)
SHARE_OF_CARD_FROM = (3, 0, 0)
BLOCKS = {"flashinfer": 1, "flashdecoding": 256, "paged": 16}
MAX_DEFAULT, PREFILL_DEFAULT = 4096, 4096
# Before 2.0: tokens of a prompt, of a request and of a prefill, the same for all models.
BY_MODEL, FIXED = (2, 0, 0), (1024, 2048, 4096)
# TFLOP/s that the launcher assumes for a card (launcher/src/main.rs f16_flop): compute capability,
# largest card in bytes, TFLOP/s; other cards have no figure.
CARDS = (
    ("9.0", 120 * 10**9, 900),
    ("9.0", 10**15, 989),
    ("8.0", 10**15, 312),
    ("8.9", 24 * 10**9, 121),
    ("8.9", 27 * 10**9, 0),
    ("8.9", 10**15, 363),
    ("8.6", 24_500_000_000, 125),
    ("8.6", 27 * 10**9, 0),
    ("8.6", 49 * 10**9, 149),
    ("7.5", 17 * 10**9, 65),
)
COUNTED_EXPERTS = ("mixtral", "phimoe", "gpt_oss", "llama4")  # `num_local_experts` in their config


def wiggle_room(run: Run) -> float:
    """TGI_WIGGLE_ROOM: the share of memory that TGI uses."""
    return next(share for since, share in WIGGLE if version(run) >= since)


def head_dim(run: Run) -> int:
    """Elements of a head in the first layer with attention; 0 without attention."""
    for layer, _, _ in run.arch.runs:
        if isinstance(layer.mixer, Attention):
            return layer.mixer.head_dim
        if isinstance(layer.mixer, LatentAttention):
            return run.arch.hidden // layer.mixer.heads
    return 0


def attention_kernels(run: Run) -> str:
    """Name of the attention kernels: launcher/src/main.rs resolve_attention."""
    if version(run) < (2, 3, 0):
        return "paged"
    fallback = "paged" if float(run.compute_capability) < 8 else "flashdecoding"
    forced = run.arch.family in ("falcon", "deepseek_v2")
    return fallback if forced or head_dim(run) not in (64, 128, 256) else "flashinfer"


def block_size(run: Run) -> int:
    """Tokens of a cache block."""
    return BLOCKS[attention_kernels(run)]


def max_request_tokens(run: Run) -> int | None:
    """Most tokens of one request; None: as many as the cache and the model allow."""
    requested = run.options.get("max_total_tokens") or run.options.get("max_seq_len")
    if requested is None and version(run) < BY_MODEL:
        return FIXED[1]
    if requested is None and version(run) < (3, 0, 0):
        return min(MAX_DEFAULT, run.arch.max_seq_len)
    return None if requested is None else int(requested)


def max_input_tokens(run: Run) -> int | None:
    """Most tokens of a prompt; None: as many as the cache and the model allow."""
    requested, longest = run.options.get("max_input_tokens"), max_request_tokens(run)
    if requested is None and version(run) < BY_MODEL:
        return FIXED[0]
    if requested is None and version(run) < (3, 0, 0) and longest is not None:
        return longest - 1
    return None if requested is None else int(requested)


def prefill_tokens(run: Run) -> int:
    """max_batch_prefill_tokens: as the run file says, or what the launcher chooses.

    From 2.0 on the longest prompt and 50 more; from 3.0 on what the card computes in a second, at
    most the model's positions and what the launcher estimates to fit.
    """
    requested = run.options.get("max_num_batched_tokens")
    if requested is not None:
        return int(requested)
    if version(run) < BY_MODEL:
        return FIXED[2]
    if version(run) < (3, 0, 0):
        return (max_input_tokens(run) or MAX_DEFAULT) + 50
    optimal = _compute_optimal(run)
    tokens = min(optimal if optimal > 100 else PREFILL_DEFAULT, run.arch.max_seq_len)
    limit = _vram_maximum(run)
    return tokens if limit is None else min(tokens, limit)


def _launcher_sizes(run: Run) -> tuple[int, int, int, int, int, int]:
    """Heads, key-value heads, head size, feed-forward, experts per token, counted experts."""
    layer = next(one for one, _, _ in reversed(run.arch.runs) if one.mlp is not None)
    mixer, mlp = layer.mixer, layer.mlp
    heads = getattr(mixer, "heads", 0)
    kv_heads = getattr(mixer, "kv_heads", heads)
    ffn = int(getattr(mlp, "ffn", 0))
    if not isinstance(mlp, Moe):
        return heads, kv_heads, head_dim(run), ffn, 1, 1
    experts = mlp.num_experts if run.arch.family in COUNTED_EXPERTS else 1
    return heads, kv_heads, head_dim(run), ffn, mlp.top_k + (mlp.shared is not None), experts


def _compute_optimal(run: Run) -> int:
    """Tokens that the cards compute in a second, by the launcher's formula."""
    cards = [(most, figure) for of, most, figure in CARDS if of == run.compute_capability]
    teraflops = next((figure for most, figure in cards if run.card_bytes <= most), 0)
    heads, kv_heads, size, ffn, experts_per_token, _ = _launcher_sizes(run)
    hidden, layers = run.arch.hidden, len(run.arch.layers)
    flops = layers * hidden * (2 * size * (3 * heads + 2 * kv_heads) + 6 * ffn * experts_per_token)
    return teraflops * 10**12 * int(run.mesh.tp) // flops


def _vram_maximum(run: Run) -> int | None:
    """Tokens that fit by the launcher's estimate; None for quantized models, which it skips."""
    if run.quantized is not None:
        return None
    heads, kv_heads, size, ffn, _, experts = _launcher_sizes(run)
    hidden, layers = run.arch.hidden, len(run.arch.layers)
    card = run.card_bytes // MIB * MIB * int(run.mesh.tp)
    available = int(card * float(run.options["gpu_memory_utilization"]) * 0.95)
    layer = 3 * ffn * experts * hidden + (heads + 2 * kv_heads) * size + heads * size * hidden
    model = 2 * (layer * layers + 2 * hidden * run.arch.vocab)
    token = kv_heads * 2 * size * 2 * layers + (ffn + ffn // 2) * experts * 2 * 3
    return (available - model) // token if available > model else None
