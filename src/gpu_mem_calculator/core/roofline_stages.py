"""A run's pipeline stages as the roofline sees them: bytes by format, units by format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..generation.kv_cache import Row, kept, plain_row
from ..model.arch import Arch
from ..model.blocks import LatentAttention
from ..run.engine import Engine
from ..run.run import Run, StoredTensor
from ..timing.card import QUANTIZED, SHORT_SUM
from ..timing.mixing import mixings
from ..timing.parts import Sized, parts
from ..timing.work import StageWork
from ..weights import WeightFormat, ggml_types, gguf
from ..weights.checkpoint import stored_bytes
from ..weights.rank_weights import BITS, run_scheme
from ..weights.shards import EXPERT, ServerShard, ShardedParameter, held

# Formats whose products run on a unit of their own; weights of the others are unpacked to 16 bits.
UNITS = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp8"}
CACHE_BITS = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "nvfp4": 4}
CACHE_TYPES = {"bf16": "BF16", "fp16": "F16", "int8": "Q8_0", "int4": "Q4_0"}


def stages(run: Run, engine: Engine) -> tuple[StageWork, ...]:
    """One rank of each."""
    counts = _counts(run, engine)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return tuple(
        _stage(run, engine, shard(run, engine, range(start, start + count), len(run.arch.layers)))
        for start, count in zip(starts, counts, strict=True)
    )


def _counts(run: Run, engine: Engine) -> list[int]:
    """Layers of each stage: as the engine says, else as evenly as can be."""
    layers, pp = len(run.arch.layers), int(run.mesh.pp)
    if run.options.get("split_mode") in ("none", "row"):
        return [layers]
    if engine.stage_layers is not None:
        return engine.stage_layers(run)
    less, more = divmod(layers, pp)
    return [less + (number < more) for number in range(pp)]


def shard(run: Run, engine: Engine, places: range, layers: int) -> ServerShard:
    """What a rank has of a stage. vLLM's replicas share their experts."""
    tp, ep = int(run.mesh.tp), int(run.mesh.ep)
    if run.options.get("split_mode") == "row":
        tp = int(run.mesh.pp)
    shared = tp * (int(run.mesh.dp) if engine.name == "vllm" else 1)
    spread = shared if engine.name == "vllm" and ep > 1 else ep
    return ServerShard(
        places=places, embedding=places.start == 0, head=places.stop == layers, tp=tp,
        attention_tp=tp // _copies(run), ep=spread, expert_tp=max(1, shared // spread),
    )  # fmt: skip


def _copies(run: Run) -> int:
    """Groups of ranks with attention of their own sequences each, within a replica."""
    return int(run.mesh.dp) if run.options.get("enable_dp_attention") else 1


def _stage(run: Run, engine: Engine, own: ServerShard) -> StageWork:
    arch, bits = run.arch, BITS[run.precision]
    local = engine.name == "llamacpp"
    plain = SHORT_SUM if local and bits == 16 else run.precision.removesuffix("_pure")
    cached = _cache_name(run)
    return StageWork(
        parts=parts(arch, own, _sized(run, own, plain, local=local), gathered=_copies(run),
                    sharing=int(run.mesh.dp) if engine.name == "vllm" else 1),
        mixings=mixings(arch, own),
        caches=kept(arch, own, _row(run, cached, bits), state_bits=bits, conv_bits=bits),
        mixed="fp8" if cached == "fp8" else plain,
        hidden_bytes=arch.hidden * bits / 8, sums=_sums(arch, own), ranks=own.tp,
        gathered=_copies(run), chosen=_chosen(arch),
    )  # fmt: skip


def _chosen(arch: Arch) -> int:
    latents = (m for layer, _, _ in arch.runs for m in layer.mixers
               if isinstance(m, LatentAttention))  # fmt: skip
    return max((one.chosen for one in latents), default=0)


def _sums(arch: Arch, own: ServerShard) -> int:
    """Tensors that a stage's ranks add up: behind each mixer and each feed-forward, once where both
    stand side by side, and behind a table of embeddings that is cut by rows.
    """
    total = 1 if own.embedding else 0
    for layer in own.layers(arch):
        mixed = 1 if layer.mixers and own.attention_tp > 1 else 0
        fed = 1 if layer.mlp is not None else 0
        total += max(mixed, fed) if layer.parallel else mixed + fed
    return total


def _cache_name(run: Run) -> str:
    """How keys and values are stored, where that is not the model's dtype."""
    given = str(run.options.get("kv_cache_dtype") or "auto")
    if given != "auto":
        return given
    own = run.quantized or {}
    inner = own.get("quantization") or own
    named = str(inner.get("kv_cache_quant_algo") or "").lower()
    if own.get("kv_cache_scheme") or named.startswith("fp8") or _chosen(run.arch):
        return "fp8"
    return "auto"


def _row(run: Run, name: str, bits: int) -> Row:
    """Bytes of one head's key or value; scales are left out but for llama.cpp's types."""
    types = [str(run.options.get(f"cache_type_{end}") or CACHE_TYPES.get(name, "F16")).upper()
             for end in "kv"]  # fmt: skip
    if "cache_type_k" in run.options:
        return lambda elements: sum(ggml_types.bytes_of(kind, elements) for kind in types) // 2
    return plain_row(CACHE_BITS.get(name, bits))


def _sized(run: Run, own: ServerShard, plain: str, *, local: bool) -> Sized:
    """Bytes of a parameter, and the unit that multiplies by it."""
    bits = BITS[run.precision]
    if local:
        return _sized_gguf(run, own, plain)
    how = run_scheme(run)
    if run.stored:
        return _from_file(run, own, run.stored, partial(_unit, how, plain))
    return lambda one: (
        float(run.scaled(sum(size for _, size in how.stored(one, bits)))),
        _unit(how, plain, one),
    )


def _unit(how: WeightFormat, plain: str, one: ShardedParameter) -> str:
    return UNITS.get(how.name, plain) if how.packs(one) else plain


def _sized_gguf(run: Run, own: ServerShard, plain: str) -> Sized:
    name = str(run.options.get("quantization") or "none")
    file = gguf.file_type(name) or {"bf16_pure": "BF16", "fp16_pure": "F16", "fp32": "F32"}[
        run.precision]  # fmt: skip
    tensors = run.stored or tuple((t.name, t.bytes, 0) for t in gguf.tensors(run.arch, file))
    unit = plain if file in ("F16", "BF16", "F32") else QUANTIZED
    return _from_file(run, own, tensors, lambda _: unit)


def _from_file(
    run: Run,
    own: ServerShard,
    tensors: tuple[StoredTensor, ...],
    unit: Callable[[ShardedParameter], str],
) -> Sized:
    """A file's bytes, in proportion to the elements of a group of its tensors."""
    sizes = stored_bytes(tensors, run.arch, own, BITS[run.precision])
    counts: dict[tuple[int, str], int] = {}
    for one in held(run.arch, own):
        counts[_group(one)] = counts.get(_group(one), 0) + one.numel
    return lambda one: (sizes.get(_group(one), 0) * one.numel / counts[_group(one)], unit(one))


def _group(one: ShardedParameter) -> tuple[int, str]:
    if one.layer >= 0:
        return one.layer, "experts" if one.role == EXPERT else "dense"
    return -1, one.role if one.role in ("embedding", "head") else "rest"
