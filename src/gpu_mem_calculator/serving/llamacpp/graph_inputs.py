"""What a compute graph depends on, and its builder: inputs, weights and cache tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

from msgspec import Struct

from ...ledger.words import words
from ...models.arch.arch import Arch
from .graph_tensors import ComputeGraph, GraphTensor, buffer_tensor, graph_input, mul_mat, new_op
from .versions import HALF_MASK, NEWEST, PLAIN_MASK


class GraphRun(Struct, frozen=True, kw_only=True):
    """Sizes and types of one graph.

    - `tokens`: tokens of a micro-batch
    - `outputs`: tokens with logits
    - `cells`: cache cells of one stream
    - `window_cells`: those of layers with a sliding window; 0: the same as `cells`
    - `streams`: separate caches, one for each sequence unless the cache is unified
    - `keys`, `values`: ggml types of the cache
    """

    build: int = NEWEST
    tokens: int
    sequences: int
    outputs: int
    cells: int
    window_cells: int = 0
    streams: int = 1
    flash: bool = True
    keys: str = "F16"
    values: str = "F16"
    offload_kqv: bool = True


class LayerDevices(Struct, frozen=True, kw_only=True):
    """The device of each layer, of the output, and of each tensor that is elsewhere; GPUs from 0
    on, the host last.
    """

    gpus: int
    layers: tuple[int, ...]
    output: int
    moved: tuple[tuple[str, int], ...] = ()
    pipelined: bool = False

    @property
    def host(self) -> int:
        """The host's number: after all GPUs."""
        return self.gpus

    @property
    def full(self) -> bool:
        """Whether every layer and the output are on GPUs."""
        return self.host not in (*self.layers, self.output)


class GraphBuilder:
    """Builds a graph; `kinds` maps names of weights to ggml types.

    `index` is the layer that is built now; -1: what is before or after the layers.
    """

    def __init__(
        self, arch: Arch, setting: GraphRun, devices: LayerDevices, kinds: Mapping[str, str]
    ) -> None:
        self.arch, self.setting, self.devices, self.kinds = arch, setting, devices, kinds
        self._moved = dict(devices.moved)
        self.graph = ComputeGraph()
        self.index = -1
        self._inputs: dict[str, GraphTensor] = {}

    def at(self, index: int) -> GraphBuilder:
        """The builder of one layer of the same graph."""
        layer = copy(self)
        layer.index = index
        return layer

    def input_tensor(self, name: str, *sizes: int, kind: str = "I32") -> GraphTensor:
        """The input of that name; created at the first call."""
        return self.once(name, lambda: graph_input(name, sizes, kind))

    def weight(self, name: str, *sizes: int, place: int) -> GraphTensor:
        """A weight on device `place`, or where it was moved; fp32 where the file type does not name
        it.
        """
        place = self._moved.get(name, place)
        return buffer_tensor(name, self.kinds.get(name, "F32"), sizes, place, weight=True)

    def has(self, name: str) -> bool:
        """Whether the layer has a weight of that name."""
        return f"blk.{self.index}.{name}" in self.kinds

    def layer_weight(self, name: str, *sizes: int) -> GraphTensor:
        """A weight of the layer, on its device; without a layer, the output's."""
        if self.index < 0:
            return self.weight(name, *sizes, place=self.devices.output)
        place = self.devices.layers[self.index]
        return self.weight(f"blk.{self.index}.{name}", *sizes, place=place)

    def product(self, name: str, outs: int, x: GraphTensor) -> GraphTensor:
        """x times a weight of the layer that has `outs` rows."""
        return mul_mat(self.layer_weight(name, x.ne[0], outs), x)

    def cache(self, name: str, kind: str, *sizes: int) -> GraphTensor:
        """A tensor of the layer's cache, on the layer's device or on the host."""
        devices, full = self.devices, f"cache_{name}_l{self.index}"
        place = devices.layers[self.index] if self.setting.offload_kqv else devices.host
        return self.once(full, lambda: buffer_tensor(full, kind, sizes, place, weight=False))

    def once(self, name: str, make: Callable[[], GraphTensor]) -> GraphTensor:
        """A tensor that several layers read; created at the first call."""
        if name not in self._inputs:
            self._inputs[name] = make()
        return self._inputs[name]

    def pin(self, tensor: GraphTensor) -> GraphTensor:
        """Assign a norm to its layer's device, as llama.cpp does if all layers are on GPUs."""
        if self.index >= 0 and (self.devices.full or self.setting.tokens < 32):
            self.graph.fixed[tensor] = self.devices.layers[self.index]
        return tensor

    def mask(self, cells: int, name: str) -> GraphTensor:
        """The attention mask, tokens by cells: fp16 for flash attention, else fp32."""
        setting = self.setting
        rows = setting.tokens // setting.streams
        if setting.build < PLAIN_MASK:
            rows = -(-rows // 64) * 64  # GGML_KQ_MASK_PAD
        kind = "F16" if setting.flash and setting.build >= HALF_MASK else "F32"
        mask = self.input_tensor(name, cells, rows, 1, setting.streams, kind=kind)
        if setting.flash and kind == "F32":
            return self.once(f"{name}_half", lambda: new_op("cpy", mask.ne, (mask,), "F16"))
        return mask


def slides(arch: Arch, index: int) -> bool:
    """Whether llama.cpp treats a layer's window as one: only its cells are cached."""
    return bool(arch.windows) and arch.windows[index] is not None and arch.family in SLIDING


# Families whose windows llama.cpp uses; it ignores Mistral's, Qwen2's, Phi-3's and StarCoder2's
# (b10586 src/models/*.cpp load_arch_hparams, swa_type).
SLIDING = words("gemma2 gemma3 gemma3_text cohere2 gpt_oss llama4 llama4_text olmo3 exaone4")
