"""What loading a model leaves on a rank: parameters as SGLang joins them, and what it adds.

sglang 0.5.18 srt/model_executor/model_runner.py load_model logs the sum as "mem usage": what the
driver's free memory lost.

Legend: h hidden size, r rank of an adapter, n adapters at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ledger.source import Source, code
from ...model.arch import Layer
from ...model.blocks import Attention, LatentAttention, Mlp, Moe
from ..serving.shard import Held, Shard, held
from .guessing import draft_held
from .segments import reserved_bytes
from .settings import Settings

Named = tuple[str, int, Source]
ROTARY = code("sglang 0.5.18 srt/layers/rotary_embedding/base.py: cos_sin_cache stays in fp32")
ABSORBED = code("sglang 0.5.18 srt/models/deepseek_common/deepseek_weight_loader.py: w_kc and w_vc "
                "are copies of kv_b_proj in 16 bits")  # fmt: skip
ADAPTERS = code("sglang 0.5.18 srt/lora/mem_pool.py get_lora_A_shape, get_lora_B_shape")
SEGMENTS = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp get_allocation_size")
MAX_LORAS = 8  # server_args.py max_loras_per_batch


def rotary_bytes(how: Settings) -> int:
    """One table for each kind of rotary embedding: positions x rotated elements x 4 bytes.

    Layers with a window have a base, and so a table, of their own in Gemma 3 only.
    """
    arch = how.run.arch
    widths = set()
    for place in how.shard.places:
        local = bool(arch.windows and arch.windows[place]) and arch.family.startswith("gemma3")
        for mixer in arch.layers[place].mixers:
            if isinstance(mixer, LatentAttention):
                widths.add((mixer.rope_dim, False))
            elif isinstance(mixer, Attention) and mixer.rotary_dim:
                widths.add((mixer.rotary_dim, local))
    positions = max(arch.max_seq_len, how.context)
    return sum(width * positions * 4 for width, _ in widths)


def absorbed_bytes(how: Settings) -> int:
    """Two factors of each latent attention's kv_b, so that decode works on latents."""
    total = 0
    for layer in how.shard.layers(how.run.arch):
        for mixer in layer.mixers:
            if isinstance(mixer, LatentAttention):
                heads = mixer.heads // how.shard.attention_tp
                total += heads * (mixer.nope_dim + mixer.value_dim) * mixer.kv_rank * 2
    return total


def tensor_sizes(how: Settings, size: int) -> Iterator[int]:
    """Bytes of each tensor that is allocated: q, k and v are one, gate and up, and all experts."""
    arch, shard = how.run.arch, how.shard
    groups: dict[tuple[int, str], int] = {}
    for one in held(arch, shard):
        name = _joined(arch.layers[one.layer], one) if one.layer >= 0 else one.name
        groups[one.layer, name] = groups.get((one.layer, name), 0) + _numel(one) * size
    yield from groups.values()


def _joined(layer: Layer, one: Held) -> str:
    """The name of the tensor that a parameter becomes a part of."""
    mlp = layer.mlp
    if one.role == "expert":
        return "experts, out" if "down" in one.name or ".w2" in one.name else "experts, in"
    parts: list[tuple[str, Iterable[str]]] = []
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            parts.append(("qkv", (each.name for each in mixer.inputs)))
    if isinstance(mlp, Mlp):
        parts.append(("gate_up", (each.name for each in mlp.inputs)))
    elif isinstance(mlp, Moe) and mlp.shared is not None:
        parts.append(("shared gate_up", (each.name for each in mlp.shared.inputs)))
    kind = one.name.rpartition(".")[2]
    for joined, names in parts:
        if any(f".{name}." in one.name for name in names):
            return f"{joined}.{kind}"
    return one.name


def _numel(one: Held) -> int:
    count = 1
    for size in one.shape:
        count *= size
    return count


def rounding_bytes(how: Settings, size: int) -> int:
    """What lies between the tensors of 16-bit weights and the driver's segments."""
    sizes = list(tensor_sizes(how, size))
    return reserved_bytes(sizes) - sum(sizes)


def adapter_bytes(how: Settings, size: int) -> int:
    """Buffers for n adapters of rank r on every projection but the experts': A is (n, c r, in),
    with c parts that SGLang joins, B (n, out, r). A's input is cut where the layer's is, B's
    output likewise.
    """
    rank = how.run.options["max_lora_rank"]
    if not rank:
        return 0
    count = int(how.run.options["max_loras"] or MAX_LORAS)
    elements = 0
    for one in held(how.run.arch, how.shard):
        if one.role == "linear" and len(one.shape) == 2:
            elements += (one.shape[0] + one.shape[1]) * int(rank)
    return count * elements * size


def draft_bytes(how: Settings, shard: Shard, size: int) -> int:
    """The draft's parameters, in the model's 16 bits."""
    return sum(_numel(one) for one in draft_held(how.run, shard)) * size
