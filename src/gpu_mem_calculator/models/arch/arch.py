"""A model on one device: its layers, and what comes before and after them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod

from msgspec import Struct

from ...ledger.remember import fields_only_ints
from .blocks import Linear, Mixer, Mlp, Moe, Norm, Share, Weight
from .neighbours import Neighbours, neighbours

TRANSFORMERS = "transformers"  # whose modelling code runs the layers of most models


class Layer(Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """One layer of a model.

    - kind: "dense", "moe", "mamba" or "encoder"
    - mixer, mlp: its two blocks; mixer_name, mlp_name: their names as modules
    - beside: further mixers by name, such as cross-attention or Mamba
    - norms: by place: `pre` before the mixer, `post` after it, `after` after the residual addition;
      `pre_mlp`, `post_mlp` and `after_mlp` likewise
    - parallel: mixer and MLP read the same normed input (GPT-J, Falcon, Cohere)
    - dropout: rate on the residual branches; extra: other parameters
    - fp32_residual: the residual stream is kept in fp32 (Mamba-2)
    - part: its index in a record of a module, or -1; modules: of that part, see run/record.py
    """

    kind: str
    mixer: Mixer | None = None
    mixer_name: str = "self_attn"
    mlp: Mlp | Moe | None = None
    mlp_name: str = "mlp"
    beside: tuple[tuple[str, Mixer], ...] = ()
    norms: tuple[tuple[str, Norm], ...] = ()
    parallel: bool = False
    dropout: float = 0.0
    extra: tuple[Weight, ...] = ()
    fp32_residual: bool = False
    part: int = -1
    modules: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def weights(self) -> Iterator[Weight]:
        """Every parameter of the layer, with names relative to it."""
        return iter(self._weights)

    @cached_property
    def _weights(self) -> tuple[Weight, ...]:
        return tuple(self._iterate_weights())

    def _iterate_weights(self) -> Iterator[Weight]:
        parts = ((self.mixer_name, self.mixer), *self.beside, (self.mlp_name, self.mlp))
        for name, part in parts:
            if part is not None:
                prefix = f"{name}." if name else ""
                for weight in part.weights():
                    yield Weight(prefix + weight.name, weight.dims, weight.share)
        for _, norm in self.norms:
            yield from norm.weights()
        yield from self.extra

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Every mixer of the layer, `beside` included."""
        return tuple(m for m in (self.mixer, *(mixer for _, mixer in self.beside)) if m is not None)

    def norm(self, where: str) -> Norm | None:
        """The norm at one place, or None."""
        return next((norm for place, norm in self.norms if place == where), None)

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are ints: no array, no `Sym`."""
        return fields_only_ints(self)

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """Every projection of the layer that is a separate module."""
        return tuple(linear for part in (self.mixer, self.mlp) for linear in part_linears(part))

    @cached_property
    def num_parameters(self) -> int:
        """Elements of all parameters of the layer."""
        return sum(weight.numel for weight in self.weights())


def part_linears(part: object) -> Iterator[Linear]:
    """The projections of a part of a layer."""
    if isinstance(part, Linear):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from part_linears(item)
    elif isinstance(part, Struct):
        for name in part.__struct_fields__:
            yield from part_linears(getattr(part, name))


class Buffer(Struct, frozen=True):
    """A tensor of the model that is not trained (rotary frequencies, causal masks)."""

    name: str
    shape: tuple[int, ...]
    bits: int = 32

    @property
    def num_bytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * self.bits // 8


class Arch(Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """A whole model: embedding, layers, head.

    - family: its `model_type`; hidden: its width; vocab: tokens of its vocabulary
    - layer_prefix: the name of the list of layers; layer_names: names of the layers where they are
      not prefix.index (T5's two stacks)
    - head: the output projection, None where it is the (tied) embedding; head_extra: other
      parameters after the layers
    - windows: sliding window of each layer in tokens, None for full attention; () if all are full
    - trains: False where only parameters and cache are modelled, not activations
    - tower: weights of the vision tower; encoder_len: most tokens that cross-attention reads
    - left_out: sentences on what is not counted; logit_scale: the factor of logits after the head
    - mtp_parameters: of multi-token prediction, published besides the model
    - implementation: the project whose modelling code runs it
    - around: a record's modules before and after the layers; share: how it is scaled (scaling.py)
    """

    family: str
    hidden: int
    vocab: int
    max_seq_len: int
    layers: tuple[Layer, ...]
    layer_prefix: str = "model.layers"
    embedding: tuple[Weight, ...]
    embedding_norm: Norm | None = None
    embedding_dropout: float = 0.0
    final_norm: Norm | None = None
    head: Linear | None = None
    tied: bool = False
    head_extra: tuple[Weight, ...] = ()
    logit_softcap: float | None = None
    windows: tuple[int | None, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    trains: bool = True
    tower: tuple[Weight, ...] = ()
    encoder_len: int = 0
    left_out: tuple[str, ...] = ()
    mtp_parameters: int = 0
    layer_names: tuple[str, ...] = ()
    logit_scale: float | None = None
    around: tuple[tuple[tuple[int, ...], ...], ...] = ()
    share: Share | None = None
    implementation: str = TRANSFORMERS

    def weights(self) -> Iterator[Weight]:
        """Every parameter with its full name, tied ones once."""
        yield from self.embedding
        if self.embedding_norm is not None:
            yield from self.embedding_norm.weights()
        for index, layer in enumerate(self.layers):
            prefix = self.layer_names[index] if self.layer_names else f"{self.layer_prefix}.{index}"
            for weight in layer.weights():
                yield Weight(f"{prefix}.{weight.name}", weight.dims, weight.share)
        yield from self.after_weights()

    def after_weights(self) -> Iterator[Weight]:
        """The parameters after the layers: final norm, head."""
        return iter(self._after)

    @cached_property
    def _after(self) -> tuple[Weight, ...]:
        return tuple(self._iterate_after())

    def _iterate_after(self) -> Iterator[Weight]:
        if self.final_norm is not None:
            yield from self.final_norm.weights()
        if self.head is not None:
            yield from self.head.weights()
        yield from self.head_extra

    @cached_property
    def embedding_parameters(self) -> int:
        """Elements of the parameters before the layers."""
        norm = self.embedding_norm
        weights = (*self.embedding, *(norm.weights() if norm else ()))
        return sum(weight.numel for weight in weights)

    @cached_property
    def after_parameters(self) -> int:
        """Elements of the parameters after the layers."""
        return sum(weight.numel for weight in self.after_weights())

    @cached_property
    def num_parameters(self) -> int:
        """Elements of all parameters; the published count where they are scaled to it."""
        if self.share is not None:
            published: int = self.share[0]
            return published
        layers = sum(layer.num_parameters for layer in self.layers)
        return self.embedding_parameters + layers + self.after_parameters

    @property
    def own_parameters(self) -> int:
        """Elements of all parameters, by the architecture alone."""
        return self.num_parameters if self.share is None else self.share[1]

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are ints: no array, no `Sym`."""
        return fields_only_ints(self)

    @cached_property
    def tower_parameters(self) -> int:
        """Elements of the vision tower, which `num_parameters` leaves out."""
        return sum(weight.numel for weight in self.tower)

    @cached_property
    def num_weights(self) -> int:
        """Number of parameter tensors."""
        return sum(1 for _ in self.weights())

    @cached_property
    def neighbours(self) -> frozenset[Neighbours]:
        """The neighbours of each parameter, in the order of the model."""
        weights = tuple(self.weights())
        return neighbours((w.shape for w in weights), (w.numel for w in weights))

    def of_layer(self, buffer: Buffer) -> bool:
        """Whether a buffer belongs to a layer."""
        return buffer.name.startswith(f"{self.layer_prefix}.")

    @cached_property
    def layer_buffers(self) -> tuple[Buffer, ...]:
        """The buffers of one layer where all layers have the same ones; else none."""
        count = len(self.layers)
        buffers = tuple(b for b in self.buffers if self.of_layer(b))
        first = buffers[: len(buffers) // count]
        shapes = [(b.shape, b.bits) for b in buffers]
        return first if shapes == count * shapes[: len(first)] else ()

    @cached_property
    def largest_weight(self) -> int:
        """Elements of the largest parameter."""
        layers = (w for layer, _, _ in self.runs for w in layer.weights())
        return max(w.numel for w in (*self.embedding, *layers, *self.after_weights()))

    @cached_property
    def largest_layer_parameters(self) -> int:
        """Most elements that one module has directly, DeepSpeed's "largest layer"."""
        sizes: dict[str, int] = {}
        distinct = {id(layer): layer for layer in self.layers}.values()
        groups = [("", w) for w in (*self.tower, *self.embedding, *self.after_weights())]
        groups += [(f"layer{i}.", w) for i, layer in enumerate(distinct) for w in layer.weights()]
        for prefix, weight in groups:
            module = prefix + weight.name.rpartition(".")[0]
            sizes[module] = sizes.get(module, 0) + weight.numel
        return max(sizes.values())

    @cached_property
    def runs(self) -> tuple[tuple[Layer, int, int], ...]:
        """Groups of consecutive equal layers: (layer, first index, count)."""
        groups: list[tuple[Layer, int, int]] = []
        for index, layer in enumerate(self.layers):
            if groups and (groups[-1][0] is layer or groups[-1][0] == layer):
                previous, first, count = groups[-1]
                groups[-1] = (previous, first, count + 1)
            else:
                groups.append((layer, index, 1))
        return tuple(groups)

    @cached_property
    def window_runs(self) -> tuple[tuple[Layer, int | None, int, int], ...]:
        """Groups of equal layers with equal windows: (layer, window, first index, count)."""
        windows = self.windows or (None,) * len(self.layers)
        pairs = enumerate(zip(self.layers, windows, strict=True))
        return merge_groups((layer, window, index, 1) for index, (layer, window) in pairs)


def merge_groups(
    runs: Iterable[tuple[Layer, int | None, int, int]],
) -> tuple[tuple[Layer, int | None, int, int], ...]:
    """Groups (layer, window, first index, count), with equal neighbours joined."""
    groups: list[tuple[Layer, int | None, int, int]] = []
    for layer, window, first, count in runs:
        if groups and groups[-1][1] == window and groups[-1][0] is layer:
            previous, _, start, before = groups[-1]
            groups[-1] = (previous, window, start, before + count)
        else:
            groups.append((layer, window, first, count))
    return tuple(groups)
