"""What is in a rank's memory after loading: fused parameters, and tables and copies beside them.

sglang 0.5.18 srt/model_executor/model_runner.py load_model logs the sum as "mem usage": the drop
of the driver's free memory, which is whole segments of torch's allocator.

Legend: n adapters at once, r their rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...ledger.formula import SIMULATED, Formula, bytes_each
from ...ledger.source import ARITHMETIC, Source, code
from ...ledger.units import GIB
from ...models.arch.blocks import LatentAttention
from ...run.cuda.libraries import KERNELS_SOURCE, kernels_bytes
from ...run.weights import rank_weights
from ...run.weights.rank_weights import BITS, rotary_formulas, run_format, weight_items
from ...run.weights.shards import LINEAR, held
from ...run.weights.weight_formulas import less, weight_formulas
from .options import SglangOptions
from .segments import reserved_bytes
from .speculative import draft_parameters
from .versions import COUNTED_DRAFT, kernels_loaded_first

Named = tuple[str, int, Source, Formula]
ROUNDING = f"{SIMULATED}segments of torch's allocator less the tensors in them"
ROTARY = code("sglang 0.5.18 srt/layers/rotary_embedding/base.py: cos_sin_cache stays in fp32")
ABSORBED = code(
    "sglang 0.5.18 srt/models/deepseek_common/deepseek_weight_loader.py: w_kc and w_vc "
    "are copies of kv_b_proj in 16 bits"
)
ADAPTERS = code("sglang 0.5.18 srt/lora/mem_pool.py get_lora_A_shape, get_lora_B_shape")
SEGMENTS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp get_allocation_size")
MAX_LORAS = 8  # server_args.py max_loras_per_batch


def load_items(setting: SglangOptions) -> Iterator[Named]:
    """All that is allocated before the pool is sized: what "mem usage" counts, then adapters and
    the draft.
    """
    run, shard, bits = setting.run, setting.shard, BITS[setting.run.precision]
    tables = [size for _, size in rotary_sizes(setting)]
    copies = list(absorbed_copies(setting))
    to_offload, formulas = offloaded_bytes(setting), weight_formulas(run, shard)
    for name, size in weight_items(run, shard, rounded=False):
        on_gpu = max(0, size - to_offload)
        to_offload -= size - on_gpu
        yield name, on_gpu, ARITHMETIC, less(formulas(name), size - on_gpu)
    rotary = rotary_formulas(run.arch, shard, _positions(setting), 32)
    yield "rotary tables", sum(tables), ROTARY, " + ".join(text for _, text in rotary)
    unpacked = " + ".join(f"{n} × {size:,} bytes" for size, n in Counter(copies).items())
    yield "latent attention: unpacked", sum(copies), ABSORBED, unpacked
    parts = [size for _, size in rank_weights.stored(run.arch, shard, run_format(run), bits)]
    sizes = [*parts, *tables, *copies]
    yield "allocator's rounding", reserved_bytes(sizes) - sum(sizes), SEGMENTS, ROUNDING
    kernels = 0 if kernels_loaded_first(run) else kernels_bytes(run)
    yield "torch's kernels", kernels, KERNELS_SOURCE, ""
    yield "adapters", adapter_bytes(setting), ADAPTERS, adapter_formula(setting)
    if setting.version >= COUNTED_DRAFT:
        yield "draft: parameters", draft_bytes(setting), ARITHMETIC, draft_formula(setting)


def offloaded_bytes(setting: SglangOptions) -> int:
    """Bytes of this rank's weights in host RAM: `cpu_offload_gb` GiB, at most all of them."""
    limit = int(float(setting.run.options["cpu_offload_gb"] or 0) * GIB)
    if not limit:
        return 0
    items = weight_items(setting.run, setting.shard, rounded=False)
    return min(limit, rank_weights.weights_bytes(items))


def rotary_sizes(setting: SglangOptions) -> list[tuple[str, int]]:
    """Name and bytes of each table of cosines and sines: fp32, one row for each position."""
    return rank_weights.rotary_tables(setting.run.arch, setting.shard, _positions(setting), 32)


def _positions(setting: SglangOptions) -> int:
    return max(setting.run.arch.max_seq_len, setting.context)


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
    return count * int(rank) * _adapted_widths(setting) * BITS[setting.run.precision] // 8


def adapter_formula(setting: SglangOptions) -> str:
    """How `adapter_bytes` is computed."""
    rank, count = setting.run.options["max_lora_rank"], setting.run.options["max_loras"]
    if not rank:
        return ""
    adapters = f"{count or MAX_LORAS} adapters × rank {rank}"
    each = bytes_each(BITS[setting.run.precision])
    return f"{adapters} × {_adapted_widths(setting):,} inputs and outputs × {each}"


def _adapted_widths(setting: SglangOptions) -> int:
    """Inputs and outputs of all projections on the rank."""
    return sum(
        parameter.shape[0] + parameter.shape[1]
        for parameter in held(setting.run.arch, setting.shard)
        if parameter.role == LINEAR and len(parameter.shape) == 2
    )


def draft_bytes(setting: SglangOptions) -> int:
    """Bytes of this rank's shard of the draft, in the model's dtype."""
    elements = sum(one.numel for one in draft_parameters(setting.run, setting.shard))
    return elements * BITS[setting.run.precision] // 8


def draft_formula(setting: SglangOptions) -> str:
    """How `draft_bytes` is computed."""
    elements = sum(one.numel for one in draft_parameters(setting.run, setting.shard))
    return f"{elements:,} parameters × {bytes_each(BITS[setting.run.precision])}"
