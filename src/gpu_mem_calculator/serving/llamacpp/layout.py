"""A server as its options say: what is where, and how large.

llama.cpp b10586 common/arg.cpp and tools/server/server.cpp for the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.remember import remembered
from ...model.blocks import Attention, LatentAttention, Moe
from ...run.run import Run
from ...weights import gguf
from ...weights.ggml_types import BLOCKS
from .activations import compute_buffers
from .attention import flashes
from .cache import CacheCells, cells, layer_bytes, padded
from .graph_inputs import GraphRun, LayerDevices, slides
from .placement import ALL, ModelFile, devices, model_buffers
from .versions import FEW_OUTPUTS, FLASH_AUTO, NEWEST, PADDED_256, build_number

SLOTS = 4  # of a server that is not told, which then share one cache
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPOKEN = {"auto": "f16", "fp16": "f16", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
POOL_PAGE = 2 << 20  # ggml-cuda's pool grows in pages of cuMemCreate
TILE = 128  # columns of its largest matrix tile


class ServerLayout(Struct, frozen=True, kw_only=True, dict=True):
    """Every choice made."""

    file: ModelFile
    build: int
    gpus: int
    offloaded: int  # -ngl
    on_host: int  # --n-cpu-moe
    shares: tuple[float, ...]
    only: int | None  # -sm none: the one GPU that is used
    context: int
    slots: int
    unified: bool
    batch: int
    ubatch: int
    flash: bool
    keys: str
    values: str
    offload_kqv: bool = True
    swa_full: bool = False
    outputs: int = 0  # tokens with logits; 0: a whole micro-batch

    @cached_property
    def where(self) -> LayerDevices:
        """The devices of its layers."""
        arch = self.file.arch
        found = devices(len(arch.layers), self.gpus, self.offloaded, self.build, self.shares,
                        self.only)  # fmt: skip
        layers, used = found[:-1], self.gpus if self.only is None else 1
        experts = tuple(self.gpus if i < self.on_host and isinstance(layer.mlp, Moe) else layers[i]
                        for i, layer in enumerate(arch.layers))  # fmt: skip
        pipelined = (used > 1 and self.offloaded > len(layers) and self.offload_kqv
                     and not self.on_host)  # fmt: skip
        return LayerDevices(gpus=self.gpus, layers=layers, output=found[-1], experts=experts,
                     pipelined=pipelined)  # fmt: skip

    @cached_property
    def cells(self) -> CacheCells:
        """How its context is divided."""
        return cells(self.file.arch, self.build, context=self.context, slots=self.slots,
                     unified=self.unified, batch=min(self.batch, self.context), ubatch=self.tokens,
                     flash=self.flash, swa_full=self.swa_full)  # fmt: skip

    @property
    def tokens(self) -> int:
        """n_ubatch: not more than the batch, nor than the context."""
        return min(self.context, self.batch, self.ubatch)

    @cached_property
    def how(self) -> GraphRun:
        """Its largest graph."""
        found, tokens = self.cells, padded(self.tokens, self.slots)
        return GraphRun(
            build=self.build, tokens=tokens, sequences=self.slots,
            outputs=min(tokens, self.outputs or tokens), cells=found.size,
            window_cells=found.window, streams=found.streams, flash=self.flash, keys=self.keys,
            values=self.values, offload_kqv=self.offload_kqv,
        )  # fmt: skip


class DeviceBytes(Struct, frozen=True):
    """Bytes of one device."""

    weights: int
    cache: int
    compute: int
    pool: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.cache + self.compute + self.pool


@remembered(32, always=True)
def laid_out(plan: ServerLayout, *, whole: bool = True) -> tuple[DeviceBytes, ...]:
    """Every GPU, and the host last; not `whole`: equal layers once, for a search."""
    where = plan.where
    weights, caches = loaded(plan)
    compute = compute_buffers(plan.file, plan.how, where, whole=whole)
    return tuple(DeviceBytes(weights[i], caches[i], compute[i], _pool(plan, where, i))
                 for i in range(plan.gpus + 1))  # fmt: skip


def loaded(plan: ServerLayout) -> tuple[list[int], list[int]]:
    """Weights and cache of every GPU, and of the host last."""
    where, caches = plan.where, [0] * (plan.gpus + 1)
    weights = model_buffers(plan.file, (*where.layers, where.output), plan.gpus, plan.on_host)
    for device in range(plan.gpus + 1):
        for place, count in alike(plan, device):
            size = layer_bytes(plan.file.arch, place, plan.cells, plan.build, plan.keys,
                               plan.values)  # fmt: skip
            caches[device] += count * size
    return weights, caches


def alike(plan: ServerLayout, device: int) -> tuple[tuple[int, int], ...]:
    """Layers whose cache is on a device: the first of each kind, and how many there are of it."""
    arch, found = plan.file.arch, dict[tuple[int, bool], list[int]]()
    for place, own in enumerate(plan.where.layers):
        if device == (own if plan.offload_kqv else plan.gpus):
            found.setdefault((id(arch.layers[place]), slides(arch, place)), []).append(place)
    return tuple((places[0], len(places)) for places in found.values())


def _pool(plan: ServerLayout, where: LayerDevices, device: int) -> int:
    """Where a product's activations are turned to int8 or 16 bits (ggml-cuda/mmq.cu).

    Outside the compute buffer; as large as the widest product wants it.
    """
    if device == plan.gpus:
        return 0
    own = {id(layer): layer for layer, at in zip(plan.file.arch.layers, where.layers, strict=True)
           if at == device}  # fmt: skip
    widest = max((rows * padded(ins, 512) for layer in own.values()
                  for rows, ins in _products(layer, plan.how.tokens)), default=0)  # fmt: skip
    plain = plan.file.ftype in ("F16", "BF16", "F32")
    size = widest * 2 if plain else widest * 144 // 128 + TILE * 144
    return padded(size, POOL_PAGE) if widest else 0


def _products(layer: Any, tokens: int) -> Iterator[tuple[int, int]]:
    yield tokens, 0
    mixer, mlp = layer.mixer, layer.mlp
    for one in (*getattr(mixer, "inputs", ()), getattr(mixer, "output", None)):
        if one is not None:
            yield tokens, one.ins[1]
    if isinstance(mlp, Moe):
        yield tokens * mlp.top_k, mlp.ffn
    elif mlp is not None:
        yield tokens, mlp.ffn


def file_type(run: Run) -> str | None:
    """The GGUF file type that a run asks for; None where it is none."""
    name = str(run.options["quantization"])
    if name == "none":
        return {"bf16_pure": "BF16", "fp16_pure": "F16", "fp32": "F32"}[run.precision]
    return gguf.file_type(name)


def cache_types(run: Run) -> tuple[str, str]:
    """Types of keys and values, as llama.cpp spells them."""
    spoken = SPOKEN.get(str(run.options["kv_cache_dtype"]), "")
    return tuple(str(run.options[f"cache_type_{end}"] or spoken).lower()
                 for end in "kv")  # type: ignore[return-value]  # fmt: skip


def planned(run: Run) -> ServerLayout:
    """A run's options, with llama-server's defaults where they are left out."""
    options, arch, gpus = run.options, run.arch, int(run.mesh.pp)
    build = min(build_number(str(options["engine_version"])) or NEWEST, NEWEST)
    given = next((options[k] for k in ("n_parallel", "max_num_seqs", "batch_size")
                  if options[k] is not None), None)  # fmt: skip
    slots = int(given if given is not None else SLOTS if build >= PADDED_256 else 1)
    unified = options["kv_unified"]
    if unified is None:
        unified = given is None and build >= PADDED_256
    keys, values = (kind.upper() for kind in cache_types(run))
    asked = options["n_gpu_layers"]
    count = options["n_cpu_moe"] or 0
    stored = run.stored if run.stored_form == "gguf" else ()
    plan = ServerLayout(
        file=ModelFile(arch, file_type(run) or "Q4_K_M", build, stored), build=build, gpus=gpus,
        offloaded=ALL if asked is None else int(asked), on_host=min(int(count), len(arch.layers)),
        shares=tuple(options["tensor_split"] or ()),
        only=int(options["main_gpu"] or 0) if options["split_mode"] == "none" else None,
        context=int(options["max_seq_len"] or arch.max_seq_len), slots=slots,
        unified=bool(unified), batch=int(options["n_batch"]), ubatch=int(options["n_ubatch"]),
        flash=bool(options["flash_attn"]), keys=keys, values=values,
        offload_kqv=not options["no_kv_offload"], swa_full=bool(options["swa_full"]),
        outputs=slots if build >= FEW_OUTPUTS else 0,
    )  # fmt: skip
    if options["flash_attn"] is None and build >= FLASH_AUTO:
        return replace(plan, flash=has_flash(plan))
    return plan


def has_flash(plan: ServerLayout) -> bool:
    """Whether CUDA has a flash kernel for every layer that is in a GPU."""
    where = plan.where
    for place, layer in enumerate(plan.file.arch.layers):
        mixer = layer.mixer
        if where.layers[place] == plan.gpus:
            continue
        if isinstance(mixer, Attention):
            sizes = mixer.head_dim, mixer.value_dim or mixer.head_dim
            shared = mixer.heads // mixer.kv_heads
        elif isinstance(mixer, LatentAttention):
            sizes, shared = (mixer.kv_rank + mixer.rope_dim, mixer.kv_rank), mixer.heads
        else:
            continue
        if not flashes(plan.keys, plan.values, *sizes, shared):
            return False
    return True


def fits(plan: ServerLayout, free: int, outside: int) -> bool:
    """Whether every GPU has room; most that do not have none for weights and cache already."""
    weights, caches = loaded(plan)
    if any(weight + cache > free for weight, cache in zip(weights[:-1], caches, strict=False)):
        return False
    used = laid_out(plan, whole=False)[:-1]
    return all(one.total + (outside if one.total else 0) <= free for one in used)


def most_layers(plan: ServerLayout, free: int, outside: int) -> int | None:
    """The largest -ngl with which it fits; None where not even one layer does."""
    low, high = 0, len(plan.file.arch.layers) + 1
    if not fits(replace(plan, offloaded=0), free, outside):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(plan, offloaded=middle), free, outside):
            low = middle
        else:
            high = middle - 1
    return low


def fewest_on_host(plan: ServerLayout, free: int, outside: int) -> int | None:
    """The smallest --n-cpu-moe with which it fits; None where it does not with all of them."""
    layers = plan.file.arch.layers
    if not any(isinstance(layer.mlp, Moe) for layer in layers):
        return None
    low, high = plan.on_host, len(layers)
    if not fits(replace(plan, on_host=high), free, outside):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(replace(plan, on_host=middle), free, outside):
            high = middle
        else:
            low = middle + 1
    return low


def longest(plan: ServerLayout, free: int, outside: int) -> int:
    """The longest context with which it fits, in steps of 256; 0 where none does."""
    low, high = 0, plan.context // 256
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(plan, context=256 * middle), free, outside):
            low = middle
        else:
            high = middle - 1
    return 256 * low


def known_types(names: tuple[str, str]) -> bool:
    """Whether llama.cpp has both as cache types."""
    return all(name in CACHE_TYPES and name.upper() in BLOCKS for name in names)
