"""What is in a rank's memory after loading: fused parameters, and tables and copies beside them.

sglang 0.5.23 srt/model_executor/model_runner.py load_model logs the sum as "mem usage": the drop
of the driver's free memory, which is whole segments of torch's allocator.

Legend: n adapters at once, r their rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...ledger.formula import SIMULATED, Formula, bytes_each
from ...ledger.source import ARITHMETIC, Source, code
from ...models.arch.blocks import LatentAttention
from ...run.cuda.libraries import KERNELS_SOURCE, kernels_bytes
from ...run.weights.rank_weights import (
    BITS,
    offloaded,
    reserved_bytes,
    rotary_formulas,
    rotary_tables,
    run_format,
    stored,
    weight_items,
)
from ...run.weights.shards import LINEAR, held
from ...run.weights.weight_formulas import less, weight_formulas
from .options import SglangOptions
from .speculative import draft_parameters
from .versions import COUNTED_DRAFT, kernels_loaded_first

Named = tuple[str, int, Source, Formula]
ROUNDING = f"{SIMULATED}segments of torch's allocator less the tensors in them"
ROTARY = code("sglang 0.5.23 srt/layers/rotary_embedding/base.py: cos_sin_cache stays in fp32")
ABSORBED = code(
    "sglang 0.5.23 srt/models/deepseek_common/deepseek_weight_loader.py: w_kc and w_vc "
    "are copies of kv_b_proj in 16 bits"
)
ADAPTERS = code("sglang 0.5.23 srt/lora/mem_pool.py get_lora_A_shape, get_lora_B_shape")
SEGMENTS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp get_allocation_size")
MAX_LORAS = 8  # server_args.py max_loras_per_batch


def load_items(setting: SglangOptions) -> Iterator[Named]:
    """All that is allocated before the pool is sized: what "mem usage" counts, then adapters and
    the draft.
    """
    run, shard, bits = setting.run, setting.shard, BITS[setting.run.precision]
    positions = max(run.arch.max_seq_len, setting.context)  # rows of cosines and sines, in fp32
    tables = [size for _, size in rotary_tables(run.arch, shard, positions, 32)]
    copies = list(absorbed_copies(setting))
    to_offload, formulas = offloaded(run, shard).size, weight_formulas(run, shard)
    for name, size in weight_items(run, shard, rounded=False):
        on_gpu = max(0, size - to_offload)
        to_offload -= size - on_gpu
        yield name, on_gpu, ARITHMETIC, less(formulas(name), size - on_gpu)
    rotary = rotary_formulas(run.arch, shard, positions, 32)
    yield "rotary tables", sum(tables), ROTARY, " + ".join(text for _, text in rotary)
    unpacked = " + ".join(f"{n} × {size:,} bytes" for size, n in Counter(copies).items())
    yield "latent attention: unpacked", sum(copies), ABSORBED, unpacked
    parts = [size for _, size in stored(run.arch, shard, run_format(run), bits)]
    sizes = [*parts, *tables, *copies]
    yield "allocator's rounding", reserved_bytes(sizes) - sum(sizes), SEGMENTS, ROUNDING
    kernels = 0 if kernels_loaded_first(run) else kernels_bytes(run)
    yield "torch's kernels", kernels, KERNELS_SOURCE, ""
    size, formula = adapters(setting)
    yield "adapters", size, ADAPTERS, formula
    if setting.version >= COUNTED_DRAFT:
        size, formula = draft(setting)
        yield "draft: parameters", size, ARITHMETIC, formula


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


def adapters(setting: SglangOptions) -> tuple[int, str]:
    """Bytes and formula of the buffers for n adapters of rank r on every projection but the
    experts'.

    A is (n, c r, in) with c projections that SGLang fuses, B is (n, out, r); both are sharded as
    the layer is.
    """
    rank, bits = setting.run.options["max_lora_rank"], BITS[setting.run.precision]
    if not rank:
        return 0, ""
    count = int(setting.run.options["max_loras"] or MAX_LORAS)
    widths = sum(
        sum(parameter.shape)
        for parameter in held(setting.run.arch, setting.shard)
        if parameter.role == LINEAR and len(parameter.shape) == 2
    )
    text = f"{count} adapters × rank {rank} × {widths:,} inputs and outputs × {bytes_each(bits)}"
    return count * int(rank) * widths * bits // 8, text


def draft(setting: SglangOptions) -> tuple[int, str]:
    """Bytes of this rank's shard of the draft, in the model's dtype, and their formula."""
    bits = BITS[setting.run.precision]
    elements = sum(one.numel for one in draft_parameters(setting.run, setting.shard))
    return elements * bits // 8, f"{elements:,} parameters × {bytes_each(bits)}"
