"""What is in a rank's memory after loading: fused parameters, and tables and copies beside them.

sglang 0.5.18 srt/model_executor/model_runner.py load_model logs the sum as "mem usage": the drop
of the driver's free memory, which is whole segments of torch's allocator.

Legend: n adapters at once, r their rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...cuda.libraries import KERNELS_SOURCE, kernels_bytes
from ...ledger.source import ARITHMETIC, Source, code
from ...ledger.units import GIB
from ...model.blocks import LatentAttention
from ...weights import rank_weights
from ...weights.rank_weights import BITS, run_format, weight_items
from ...weights.shards import LINEAR, held
from .options import SglangOptions
from .segments import reserved_bytes
from .speculative import draft_parameters
from .versions import COUNTED_DRAFT, kernels_loaded_first

Named = tuple[str, int, Source]
ROTARY = code("sglang 0.5.18 srt/layers/rotary_embedding/base.py: cos_sin_cache stays in fp32")
ABSORBED = code(
    "sglang 0.5.18 srt/models/deepseek_common/deepseek_weight_loader.py: w_kc and w_vc "
    "are copies of kv_b_proj in 16 bits"
)
ADAPTERS = code("sglang 0.5.18 srt/lora/mem_pool.py get_lora_A_shape, get_lora_B_shape")
SEGMENTS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp get_allocation_size")
MAX_LORAS = 8  # server_args.py max_loras_per_batch


def load_items(setting: SglangOptions) -> Iterator[Named]:
    """Name, bytes and source of all that is allocated before the pool is sized: what "mem usage"
    counts, then adapters and the draft.
    """
    run, shard, bits = setting.run, setting.shard, BITS[setting.run.precision]
    tables = [size for _, size in rotary_sizes(setting)]
    copies = list(absorbed_copies(setting))
    to_offload = offloaded_bytes(setting)
    for name, size in weight_items(run, shard, rounded=False):
        on_gpu = max(0, size - to_offload)
        to_offload -= size - on_gpu
        yield name, on_gpu, ARITHMETIC
    yield "rotary tables", sum(tables), ROTARY
    yield "latent attention: unpacked", sum(copies), ABSORBED
    parts = [size for _, size in rank_weights.stored(run.arch, shard, run_format(run), bits)]
    sizes = [*parts, *tables, *copies]
    yield "allocator's rounding", reserved_bytes(sizes) - sum(sizes), SEGMENTS
    yield "torch's kernels", 0 if kernels_loaded_first(run) else kernels_bytes(run), KERNELS_SOURCE
    yield "adapters", adapter_bytes(setting), ADAPTERS
    if setting.version >= COUNTED_DRAFT:
        yield "draft: parameters", draft_bytes(setting), ARITHMETIC


def offloaded_bytes(setting: SglangOptions) -> int:
    """Bytes of this rank's weights in host RAM: `cpu_offload_gb` GiB, at most all of them."""
    limit = int(float(setting.run.options["cpu_offload_gb"] or 0) * GIB)
    if not limit:
        return 0
    items = weight_items(setting.run, setting.shard, rounded=False)
    return min(limit, rank_weights.weights_bytes(items))


def rotary_sizes(setting: SglangOptions) -> list[tuple[str, int]]:
    """Name and bytes of each table of cosines and sines: fp32, one row for each position."""
    positions = max(setting.run.arch.max_seq_len, setting.context)
    return rank_weights.rotary_tables(setting.run.arch, setting.shard, positions, 32)


def absorbed_copies(setting: SglangOptions) -> Iterator[int]:
    """Bytes of w_kc and w_vc of each latent attention: 16-bit copies of kv_b_proj's two factors,
    with which decode works on latents.
    """
    for layer in setting.shard.layers(setting.run.arch):
        for mixer in layer.mixers:
            if isinstance(mixer, LatentAttention):
                heads = mixer.heads // setting.shard.attention_tp
                yield heads * mixer.nope_dim * mixer.kv_rank * 2
                yield heads * mixer.value_dim * mixer.kv_rank * 2


def adapter_bytes(setting: SglangOptions) -> int:
    """Bytes of the buffers for n adapters of rank r on every projection but the experts'.

    A is (n, c r, in) with c projections that SGLang fuses, B is (n, out, r); both are sharded as
    the layer is.
    """
    rank = setting.run.options["max_lora_rank"]
    if not rank:
        return 0
    count = int(setting.run.options["max_loras"] or MAX_LORAS)
    widths = sum(
        parameter.shape[0] + parameter.shape[1]
        for parameter in held(setting.run.arch, setting.shard)
        if parameter.role == LINEAR and len(parameter.shape) == 2
    )
    return count * int(rank) * widths * BITS[setting.run.precision] // 8


def draft_bytes(setting: SglangOptions) -> int:
    """Bytes of this rank's shard of the draft, in the model's dtype."""
    elements = sum(one.numel for one in draft_parameters(setting.run, setting.shard))
    return elements * BITS[setting.run.precision] // 8
