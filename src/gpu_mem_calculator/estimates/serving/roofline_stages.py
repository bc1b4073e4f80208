"""What the pipeline stages of a server read and compute, for the roofline of its speed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...models.arch.arch import Arch
from ...models.arch.blocks import LatentAttention, Moe
from ...run.engine import Engine
from ...run.run import Run, StoredTensor
from ...run.weights import WeightFormat
from ...run.weights.checkpoint import stored_bytes
from ...run.weights.rank_weights import BITS, run_format
from ...run.weights.shards import EXPERT, ServerShard, ShardedParameter, held
from ...serving import server_row
from ...timing.serving.mixing import mixings
from ...timing.serving.parts import WeightSizer, parts
from ...timing.serving.roofline import QUANTIZED, SHORT_SUM
from ...timing.serving.work import StageWork
from ...training.generation.kv_cache import RowBytes, cached_states, unscaled_row

# Formats with their own tensor-core units; weights in other formats are unpacked to 16 bits.
UNITS = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp8"}
CACHE_BITS = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "nvfp4": 4}
# llama.cpp's types, of the dtypes that it stores a cache in; "auto" is its default.
CACHE_TYPES = {"auto": "F16", "bf16": "BF16", "fp16": "F16", "int8": "Q8_0", "int4": "Q4_0"}


def stage_work(run: Run, engine: Engine) -> tuple[StageWork, ...]:
    """The work of one rank of each pipeline stage; stages with equal layers are the same object."""
    counts, layers = stage_layer_counts(run, engine), len(run.arch.layers)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    found: dict[object, StageWork] = {}
    works = []
    for start, count in zip(starts, counts, strict=True):
        shard = stage_shard(run, engine, range(start, start + count), layers)
        key = _stage_key(run, engine, shard)
        if key not in found:
            found[key] = _stage(run, engine, shard)
        works.append(found[key])
    return tuple(works)


def _stage_key(run: Run, engine: Engine, shard: ServerShard) -> object:
    """Equal for stages with equal work; a checkpoint's tensors may differ from layer to layer."""
    if run.stored or server_row(engine.name).reads_gguf:
        return shard.places, shard.embedding, shard.head
    windows = run.arch.windows or (None,) * len(run.arch.layers)
    kinds = tuple((id(run.arch.layers[place]), windows[place]) for place in shard.places)
    return kinds, shard.embedding, shard.head


def stage_layer_counts(run: Run, engine: Engine) -> list[int]:
    """Layers of each stage: as the engine splits them, else as evenly as possible."""
    layers, pp = len(run.arch.layers), int(run.mesh.pp)
    if run.options.get("split_mode") in ("none", "row"):
        return [layers]
    if engine.stage_layers is not None:
        return engine.stage_layers(run)
    less, more = divmod(layers, pp)
    return [less + (number < more) for number in range(pp)]


def stage_shard(run: Run, engine: Engine, layer_range: range, layers: int) -> ServerShard:
    """What one rank has of the layers of a stage."""
    tp, ep = int(run.mesh.tp), int(run.mesh.ep)
    if run.options.get("split_mode") == "row":
        tp = int(run.mesh.pp)
    return ServerShard(
        places=layer_range,
        embedding=layer_range.start == 0,
        head=layer_range.stop == layers,
        tp=tp,
        attention_tp=tp // _attention_groups(run),
        ep=ep,
        expert_tp=max(1, tp * _sharing_replicas(run, engine) // ep),
    )


def _sharing_replicas(run: Run, engine: Engine) -> int:
    """Data-parallel replicas that share experts."""
    return int(run.mesh.dp) if server_row(engine.name).replicas_share_experts else 1


def _attention_groups(run: Run) -> int:
    """Data-parallel attention groups of a replica, each of which has its own sequences."""
    return int(run.mesh.dp) if run.options.get("enable_dp_attention") else 1


def _stage(run: Run, engine: Engine, shard: ServerShard) -> StageWork:
    arch, bits = run.arch, BITS[run.precision]
    local = server_row(engine.name).reads_gguf
    plain = SHORT_SUM if local and bits == 16 else run.precision.removesuffix("_pure")
    cached = _cache_name(run)
    experts = [layer.mlp.top_k for layer in shard.layers(arch) if isinstance(layer.mlp, Moe)]
    return StageWork(
        parts=parts(
            arch,
            shard,
            _parameter_sizes(run, shard, plain, local=local),
            gathered=_attention_groups(run),
            sharing=_sharing_replicas(run, engine),
        ),
        mixings=mixings(arch, shard),
        caches=cached_states(arch, shard, _row(run, cached, bits), state_bits=bits, conv_bits=bits),
        mixed="fp8" if cached == "fp8" else plain,
        hidden_bytes=arch.hidden * bits / 8,
        sums=_reductions(arch, shard),
        ranks=shard.tp,
        gathered=_attention_groups(run),
        chosen=_sparse_tokens(arch),
        routed=sum(experts),
        exchanged=len(experts),
    )


def _sparse_tokens(arch: Arch) -> int:
    """Tokens that sparse attention reads for each query; 0 where attention reads all."""
    latents = (
        m for layer, _, _ in arch.runs for m in layer.mixers if isinstance(m, LatentAttention)
    )
    return max((one.chosen for one in latents), default=0)


def _reductions(arch: Arch, shard: ServerShard) -> int:
    """All-reduces of a stage: one after each mixer and each feed-forward (one for both where they
    run in parallel), and one after an embedding table that is sharded by rows.
    """
    total = 1 if shard.embedding else 0
    for layer in shard.layers(arch):
        mixed = 1 if layer.mixers and shard.attention_tp > 1 else 0
        fed = 1 if layer.mlp is not None else 0
        total += max(mixed, fed) if layer.parallel else mixed + fed
    return total


def _cache_name(run: Run) -> str:
    """The format of keys and values; `auto` where it is the model's dtype."""
    given = str(run.options.get("kv_cache_dtype") or "auto")
    if given != "auto":
        return given
    config = run.quantized or {}
    inner = config.get("quantization") or config
    algorithm = str(inner.get("kv_cache_quant_algo") or "").lower()
    if config.get("kv_cache_scheme") or algorithm.startswith("fp8") or _sparse_tokens(run.arch):
        return "fp8"
    return "auto"


def _row(run: Run, name: str, bits: int) -> RowBytes:
    """A function that gives the bytes of one head's key or value of some elements.

    Scales are not counted, except for llama.cpp's types.
    """
    if "cache_type_k" in run.options:
        given = (run.options[f"cache_type_{end}"] or CACHE_TYPES[name] for end in "kv")
        from ...run.weights.ggml_types import ggml_bytes

        types = [str(kind).upper() for kind in given]
        return lambda elements: sum(ggml_bytes(kind, elements) for kind in types) // 2
    return unscaled_row(bits if name == "auto" else CACHE_BITS[name])


def _parameter_sizes(run: Run, shard: ServerShard, plain: str, *, local: bool) -> WeightSizer:
    """A function that gives the bytes of a parameter, and the unit that multiplies by it."""
    bits = BITS[run.precision]
    if local:
        return _gguf_sizes(run, shard, plain)
    scheme = run_format(run)
    if run.stored:
        return _file_sizes(run, shard, run.stored, partial(_unit, scheme, plain))
    return lambda one: (
        float(int(run.scaled(sum(size for _, size in scheme.stored(one, bits))))),
        _unit(scheme, plain, one),
    )


def _unit(scheme: WeightFormat, plain: str, one: ShardedParameter) -> str:
    return UNITS.get(scheme.name, plain) if scheme.packs(one) else plain


def _gguf_sizes(run: Run, shard: ServerShard, plain: str) -> WeightSizer:
    from ...run.weights import gguf

    name = str(run.options.get("quantization") or "none")
    file = (
        gguf.file_type(name)
        or {"bf16_pure": "BF16", "fp16_pure": "F16", "fp32": "F32"}[run.precision]
    )
    tensors = run.stored or tuple((t.name, t.bytes, 0) for t in gguf.tensors(run.arch, file))
    unit = plain if file in ("F16", "BF16", "F32") else QUANTIZED
    return _file_sizes(run, shard, tensors, lambda _: unit)


def _file_sizes(
    run: Run,
    shard: ServerShard,
    tensors: tuple[StoredTensor, ...],
    unit: Callable[[ShardedParameter], str],
) -> WeightSizer:
    """The bytes of a checkpoint's tensors, shared out to parameters in proportion to elements."""
    sizes = stored_bytes(tensors, run.arch, shard, BITS[run.precision])
    counts: dict[tuple[int, str], int] = {}
    for one in held(run.arch, shard):
        counts[_group(one)] = counts.get(_group(one), 0) + one.numel
    return lambda one: (sizes.get(_group(one), 0) * one.numel / counts[_group(one)], unit(one))


def _group(one: ShardedParameter) -> tuple[int, str]:
    if one.layer >= 0:
        return one.layer, "experts" if one.role == EXPERT else "dense"
    return -1, one.role if one.role in ("embedding", "head") else "rest"
