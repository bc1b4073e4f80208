"""A server with every option set: the device of each layer, and the bytes of each device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.remember import remembered
from ...models.arch.blocks import Attention, LatentAttention, Moe
from .activations import compute_buffers
from .attention_scores import has_flash_kernel
from .cache import CacheCells, head_sizes, layer_bytes, pad
from .graph_inputs import GraphRun, LayerDevices, slides
from .versions import LATENT, PADDED_256, SLIDING_CACHE, STREAMS, WINDOW_256, WINDOW_UBATCH
from .weights import HOST, ModelFile, Overrides, layer_devices, model_buffers, moved_tensors

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOL_PAGE = 2 << 20  # ggml-cuda's pool grows in pages of cuMemCreate
TILE = 128  # columns of its largest matrix tile


class ServerLayout(Struct, frozen=True, kw_only=True, dict=True):
    """The options of a server.

    - `gpu_layers`: -ngl, layers on GPUs
    - `overrides`: -ot, --n-cpu-moe, tensors that are on other devices
    - `shares`: -ts, each GPU's share of the layers; empty: equal shares
    - `single_gpu`: -mg under -sm none, the only GPU that is used; None: all are
    - `context`: -c, tokens of all slots together
    - `slots`: -np, sequences at once; `unified`: they share one cache
    - `batch`, `ubatch`: -b and -ub, tokens of a batch and of a micro-batch
    - `keys`, `values`: ggml types of the cache
    - `offload_kqv`: whether the cache is on the devices of its layers, else on the host
    - `outputs`: tokens with logits; 0: those of a whole micro-batch
    """

    file: ModelFile
    build: int
    gpus: int
    gpu_layers: int
    overrides: Overrides
    shares: tuple[float, ...]
    single_gpu: int | None
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
    outputs: int = 0

    @cached_property
    def devices(self) -> LayerDevices:
        """The devices of layers and output, and of tensors that are elsewhere."""
        arch = self.file.arch
        *layers, output = layer_devices(
            len(arch.layers), self.gpus, self.gpu_layers, self.build, self.shares, self.single_gpu
        )
        several = self.gpus > 1 and self.single_gpu is None
        whole = self.gpu_layers > len(layers) and self.offload_kqv and not self.overrides
        return LayerDevices(
            gpus=self.gpus,
            layers=tuple(layers),
            output=output,
            moved=tuple(self.moved.items()),
            pipelined=several and whole,
        )

    @cached_property
    def moved(self) -> dict[str, int]:
        """The device of each tensor that an override places."""
        names = tuple(self.file.kinds()) if self.overrides else ()
        found = moved_tensors(names, self.overrides)
        return {name: self.gpus if to == HOST else to for name, to in found.items()}

    @cached_property
    def cells(self) -> CacheCells:
        """How the context is divided between the slots into cells of the cache."""
        multiple = 256 if self.build >= PADDED_256 or self.flash else 32
        unified = self.unified or self.build < STREAMS
        context = pad(self.context, multiple)
        sequence = context if unified else pad(context // self.slots, multiple)
        if unified and self.build < PADDED_256:
            sequence = context // self.slots
        if not unified:
            context = sequence * self.slots
        streams = 1 if unified else self.slots
        cells = CacheCells(context=context, sequence=sequence, slots=self.slots, streams=streams)
        return replace(cells, window=self._window_cells(cells, multiple))

    def _window_cells(self, cells: CacheCells, multiple: int) -> int:
        """Cells of a stream in layers with a window; 0 where there are none."""
        arch, build = self.file.arch, self.build
        if not any(slides(arch, i) for i in range(len(arch.layers))):
            return 0
        if self.swa_full or build < SLIDING_CACHE:  # windows are masked, every cell is allocated
            return cells.size
        batch = self.tokens if build >= WINDOW_UBATCH else min(self.batch, self.context)
        rows = max(w for w in arch.windows if w) * (self.slots // cells.streams) + batch
        if build >= WINDOW_256:
            return pad(min(cells.size, rows), 256)
        return min(cells.size, pad(rows, multiple))

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch: n_ubatch, at most the batch and the context."""
        return min(self.context, self.batch, self.ubatch)

    @cached_property
    def setting(self) -> GraphRun:
        """The sizes of the largest graph."""
        cells, tokens = self.cells, pad(self.tokens, self.slots)
        return GraphRun(
            build=self.build,
            tokens=tokens,
            sequences=self.slots,
            outputs=min(tokens, self.outputs or tokens),
            cells=cells.size,
            window_cells=cells.window,
            streams=cells.streams,
            flash=self.flash,
            keys=self.keys,
            values=self.values,
            offload_kqv=self.offload_kqv,
        )


class DeviceBytes(Struct, frozen=True):
    """Bytes of one device: model, KV and compute buffers, and ggml-cuda's pool."""

    weights: int
    cache: int
    compute: int
    pool: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.cache + self.compute + self.pool


@remembered(32, always=True)
def device_bytes(layout: ServerLayout, *, whole: bool = True) -> tuple[DeviceBytes, ...]:
    """The bytes of every GPU, and of the host last.

    Without `whole` most of the equal layers are left out of the graph: faster, for a search.
    """
    devices = layout.devices
    weights, caches = loaded_bytes(layout)
    compute = compute_buffers(layout.file, layout.setting, devices, whole=whole)
    return tuple(
        DeviceBytes(weights[i], caches[i], compute[i], _pool_bytes(layout, i))
        for i in range(layout.gpus + 1)
    )


def loaded_bytes(layout: ServerLayout) -> tuple[list[int], list[int]]:
    """Bytes of weights and of cache, each of every GPU and of the host last."""
    devices, caches = layout.devices, [0] * (layout.gpus + 1)
    places = (*devices.layers, devices.output)
    weights = model_buffers(layout.file, places, layout.gpus, layout.moved)
    types = (layout.build, layout.keys, layout.values)
    for device in range(layout.gpus + 1):
        for place, count in layer_kinds(layout, device):
            caches[device] += count * layer_bytes(layout.file.arch, place, layout.cells, *types)
    return weights, caches


def layer_kinds(layout: ServerLayout, device: int) -> tuple[tuple[int, int], ...]:
    """Kinds of layers whose cache is on a device: (index of the first, number of layers) each."""
    arch, kinds = layout.file.arch, dict[tuple[int, bool], list[int]]()
    for place, layer_device in enumerate(layout.devices.layers):
        if device == (layer_device if layout.offload_kqv else layout.gpus):
            kinds.setdefault((id(arch.layers[place]), slides(arch, place)), []).append(place)
    return tuple((places[0], len(places)) for places in kinds.values())


def _pool_bytes(layout: ServerLayout, device: int) -> int:
    """Bytes of ggml-cuda's pool: `pool_elements` in 8 bits or 16, in whole pages."""
    widest = pool_elements(layout, device)
    size = widest * 2 if is_plain(layout) else widest * 144 // 128 + TILE * 144
    return pad(size, POOL_PAGE) if widest else 0


def is_plain(layout: ServerLayout) -> bool:
    """Whether weights are not quantized."""
    return layout.file.ftype in ("F16", "BF16", "F32")


def pool_elements(layout: ServerLayout, device: int) -> int:
    """Elements of ggml-cuda's pool, in which activations are converted to int8 or 16 bits for a
    matrix product (ggml-cuda/mmq.cu): outside the compute buffer, as large as the largest needs.
    """
    if device == layout.gpus:
        return 0
    placed = zip(layout.file.arch.layers, layout.devices.layers, strict=True)
    layers = {id(layer): layer for layer, of in placed if of == device}.values()
    products = (one for layer in layers for one in _products(layer, layout.setting.tokens))
    return max((rows * pad(ins, 512) for rows, ins in products), default=0)


def _products(layer: Any, tokens: int) -> Iterator[tuple[int, int]]:
    """Rows and input size of each matrix product of a layer."""
    yield tokens, 0
    mixer, mlp = layer.mixer, layer.mlp
    for one in (*getattr(mixer, "inputs", ()), getattr(mixer, "output", None)):
        if one is not None:
            yield tokens, one.ins[1]
    if mlp is not None:
        yield tokens * (mlp.top_k if isinstance(mlp, Moe) else 1), mlp.ffn


def has_flash(layout: ServerLayout) -> bool:
    """Whether CUDA has a flash kernel for every layer that is on a GPU."""
    placed = zip(layout.file.arch.layers, layout.devices.layers, strict=True)
    for mixer in (layer.mixer for layer, device in placed if device != layout.gpus):
        if isinstance(mixer, LatentAttention) and layout.build < LATENT:
            return False  # keys and values of a head differ in size
        if isinstance(mixer, Attention | LatentAttention):
            size, value = head_sizes(mixer)
            shared = mixer.heads // (mixer.kv_heads if isinstance(mixer, Attention) else 1)
            if not has_flash_kernel(layout.keys, layout.values, size, value, shared):
                return False
    return True
