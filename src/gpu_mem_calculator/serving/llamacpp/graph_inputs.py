"""What a graph is built for: how many tokens and cells, which types, and where the layers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from ...model.arch import Arch
from .graph_tensors import ComputeGraph, GraphTensor, graph_input, new, stored
from .versions import HALF_MASK, NEWEST, PLAIN_MASK


class GraphRun(Struct, frozen=True, kw_only=True):
    """The run of one graph."""

    build: int = NEWEST
    tokens: int  # of a micro-batch
    sequences: int
    outputs: int  # tokens with logits
    cells: int  # of one stream
    window_cells: int = 0  # of layers with a sliding window, 0: they have none of their own
    streams: int = 1
    flash: bool = True
    keys: str = "F16"
    values: str = "F16"
    offload_kqv: bool = True


class LayerDevices(Struct, frozen=True, kw_only=True):
    """Devices: GPUs from 0 on, then the host; of each layer, its experts, and the output."""

    gpus: int
    layers: tuple[int, ...]
    output: int
    experts: tuple[int, ...]
    pipelined: bool = False

    @property
    def host(self) -> int:
        """The last device."""
        return self.gpus

    @property
    def full(self) -> bool:
        """Whether every layer is in a GPU, the output too."""
        return self.host not in (*self.layers, self.output)


class GraphBuilder:
    """A graph in the making: its inputs, its weights, its cache.

    `kinds` are ggml's types of the weights, by name.
    """

    def __init__(
        self, arch: Arch, how: GraphRun, where: LayerDevices, kinds: Mapping[str, str]
    ) -> None:
        self.arch, self.how, self.where, self.kinds = arch, how, where, kinds
        self.graph = ComputeGraph()
        self._inputs: dict[str, GraphTensor] = {}

    def given(self, name: str, *sizes: int, kind: str = "I32") -> GraphTensor:
        """An input, made once."""
        if name not in self._inputs:
            self._inputs[name] = graph_input(name, sizes, kind)
        return self._inputs[name]

    def weight(self, name: str, *sizes: int, place: int) -> GraphTensor:
        """A weight; what has no type of its own is fp32."""
        kind = self.kinds.get(name, "F32")
        return stored(name, kind, sizes, place, weight=True)

    def layer_weight(self, index: int, name: str, *sizes: int) -> GraphTensor:
        """A weight of a layer, where the layer is."""
        place = self.where.layers[index]
        if "_exps." in name:
            place = self.where.experts[index]
        return self.weight(f"blk.{index}.{name}", *sizes, place=place)

    def cache(self, index: int, name: str, kind: str, *sizes: int) -> GraphTensor:
        """A part of the cache, where the layer is or on the host."""
        full = f"cache_{name}_l{index}"
        if full not in self._inputs:
            place = self.where.layers[index] if self.how.offload_kqv else self.where.host
            self._inputs[full] = stored(full, kind, sizes, place, weight=False)
        return self._inputs[full]

    def once(self, name: str, make: Callable[[], GraphTensor]) -> GraphTensor:
        """A tensor that several layers read, made once."""
        if name not in self._inputs:
            self._inputs[name] = make()
        return self._inputs[name]

    def pin(self, tensor: GraphTensor, index: int) -> GraphTensor:
        """Norms of a layer stay with it where all layers are in GPUs."""
        if index >= 0 and (self.where.full or self.how.tokens < 32):
            self.graph.fixed[tensor] = self.where.layers[index]
        return tensor

    def mask(self, cells: int, name: str) -> GraphTensor:
        """Which cells each token sees: fp16 for flash attention."""
        how = self.how
        rows = how.tokens // how.streams
        if how.build < PLAIN_MASK:
            rows = -(-rows // 64) * 64  # GGML_KQ_MASK_PAD
        kind = "F16" if how.flash and how.build >= HALF_MASK else "F32"
        found = self.given(name, cells, rows, 1, how.streams, kind=kind)
        if how.flash and kind == "F32":
            return self.once(f"{name}_half", lambda: new("cpy", found.ne, (found,), "F16"))
        return found


def slides(arch: Arch, index: int) -> bool:
    """Whether llama.cpp gives a layer a cache of its window only."""
    return bool(arch.windows) and arch.windows[index] is not None and arch.family in SLIDING


# Families whose windows llama.cpp keeps to; Mistral's, Qwen2's, Phi-3's and StarCoder2's it does
# not (b10586 src/models/*.cpp load_arch_hparams, swa_type).
SLIDING = frozenset({"gemma2", "gemma3", "gemma3_text", "cohere2", "gpt_oss", "llama4",
                     "llama4_text", "olmo3", "exaone4"})  # fmt: skip
