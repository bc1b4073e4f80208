"""What loading a model leaves on a rank: its parameters as SGLang joins them, and what it adds.

sglang 0.5.18 srt/model_executor/model_runner.py load_model logs the sum as "mem usage": what the
driver's free memory lost, whole segments of torch's allocator.

Legend: n adapters at once, r their rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...cuda.libraries import KERNELS_SOURCE, kernels_bytes
from ...ledger.source import ARITHMETIC, Source, code
from ...ledger.units import GIB
from ...model.blocks import LatentAttention
from ...weights.rank_weights import (
    BITS,
    rotary_tables,
    run_scheme,
    stored,
    weight_items,
    weights_bytes,
)
from ...weights.shards import LINEAR, held
from .options import SglangOptions
from .segments import reserved_bytes
from .speculative import draft_held
from .versions import COUNTED_DRAFT, warm

Named = tuple[str, int, Source]
ROTARY = code("sglang 0.5.18 srt/layers/rotary_embedding/base.py: cos_sin_cache stays in fp32")
ABSORBED = code("sglang 0.5.18 srt/models/deepseek_common/deepseek_weight_loader.py: w_kc and w_vc "
                "are copies of kv_b_proj in 16 bits")  # fmt: skip
ADAPTERS = code("sglang 0.5.18 srt/lora/mem_pool.py get_lora_A_shape, get_lora_B_shape")
SEGMENTS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp get_allocation_size")
MAX_LORAS = 8  # server_args.py max_loras_per_batch


def loaded(how: SglangOptions) -> Iterator[Named]:
    """Everything that "mem usage" counts, and what follows before the pool is cut."""
    run, shard, bits = how.run, how.shard, BITS[how.run.precision]
    tables = [size for _, size in rotary(how)]
    copies = list(absorbed(how))
    away = offloaded(how)
    for name, size in weight_items(run, shard, rounded=False):
        kept = max(0, size - away)
        away -= size - kept
        yield name, kept, ARITHMETIC
    yield "rotary tables", sum(tables), ROTARY
    yield "latent attention: unpacked", sum(copies), ABSORBED
    parts = [size for _, size in stored(run.arch, shard, run_scheme(run), bits)]
    sizes = [*parts, *tables, *copies]
    yield "allocator's rounding", reserved_bytes(sizes) - sum(sizes), SEGMENTS
    yield "torch's kernels", 0 if warm(run) else kernels_bytes(run), KERNELS_SOURCE
    yield "adapters", adapter_bytes(how), ADAPTERS
    if how.version >= COUNTED_DRAFT:
        yield "draft: parameters", draft_bytes(how), ARITHMETIC


def offloaded(how: SglangOptions) -> int:
    """Weights that stay on the host: `cpu_offload_gb` of each rank, all of them at most."""
    wanted = int(float(how.run.options["cpu_offload_gb"] or 0) * GIB)
    return (
        0
        if not wanted
        else min(wanted, weights_bytes(weight_items(how.run, how.shard, rounded=False)))
    )


def rotary(how: SglangOptions) -> list[tuple[str, int]]:
    """Cosines and sines of every position."""
    positions = max(how.run.arch.max_seq_len, how.context)
    return rotary_tables(how.run.arch, how.shard, positions, 32)


def absorbed(how: SglangOptions) -> Iterator[int]:
    """Two factors of each latent attention's kv_b, so that decode works on latents."""
    for layer in how.shard.layers(how.run.arch):
        for mixer in layer.mixers:
            if isinstance(mixer, LatentAttention):
                heads = mixer.heads // how.shard.attention_tp
                yield heads * mixer.nope_dim * mixer.kv_rank * 2
                yield heads * mixer.value_dim * mixer.kv_rank * 2


def adapter_bytes(how: SglangOptions) -> int:
    """Buffers for n adapters of rank r on every projection but the experts': A is (n, c r, in),
    with c parts that SGLang joins, B (n, out, r), both cut where the layer is.
    """
    rank = how.run.options["max_lora_rank"]
    if not rank:
        return 0
    count = int(how.run.options["max_loras"] or MAX_LORAS)
    wide = sum(one.shape[0] + one.shape[1] for one in held(how.run.arch, how.shard)
               if one.role == LINEAR and len(one.shape) == 2)  # fmt: skip
    return count * int(rank) * wide * BITS[how.run.precision] // 8


def draft_bytes(how: SglangOptions) -> int:
    """The draft's parameters, in the model's 16 bits."""
    elements = sum(one.numel for one in draft_held(how.run, how.shard))
    return elements * BITS[how.run.precision] // 8
