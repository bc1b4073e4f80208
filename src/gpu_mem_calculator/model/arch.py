"""A model on one device: its layers, and what comes before and after them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec import Struct

from ..ledger.remember import fields_only_ints
from .blocks import Linear, Mixer, Mlp, Moe, Norm, Share, Weight


class Layer(Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """One block of the stack. Norms are named by where they stand:

    `pre` before the mixer, `post` after it, `after` behind the residual addition, `pre_mlp`,
    `post_mlp` and `after_mlp` likewise. `parallel` means
    that mixer and MLP read the same normed input (GPT-J, Falcon, Cohere).
    """

    kind: str  # what people call it: "dense", "moe", "mamba", "encoder"
    mixer: Mixer | None = None
    mixer_name: str = "self_attn"
    mlp: Mlp | Moe | None = None
    mlp_name: str = "mlp"
    beside: tuple[tuple[str, Mixer], ...] = ()  # further mixers by name: cross-attention, Mamba
    norms: tuple[tuple[str, Norm], ...] = ()
    parallel: bool = False
    dropout: float = 0.0  # on the residual branches
    extra: tuple[Weight, ...] = ()
    fp32_residual: bool = False  # the residual stream is kept in fp32 (Mamba-2)
    part: int = -1  # which part of a module's record it is
    modules: tuple[tuple[tuple[int, ...], ...], ...] = ()  # of that part: see run/record.py

    def weights(self) -> Iterator[Weight]:
        """Every parameter of the layer, names relative to it."""
        return iter(self._weights)

    @cached_property
    def _weights(self) -> tuple[Weight, ...]:
        return tuple(self._listed())

    def _listed(self) -> Iterator[Weight]:
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
        """Every mixer of the layer."""
        own = () if self.mixer is None else (self.mixer,)
        return (*own, *(mixer for _, mixer in self.beside))

    def norm(self, where: str) -> Norm | None:
        """The norm at one place, if the layer has it."""
        return next((norm for place, norm in self.norms if place == where), None)

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are plain numbers."""
        return fields_only_ints(self)

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """Every projection of the layer that stands as a module of its own."""
        return tuple(one for part in (self.mixer, self.mlp) for one in _linears(part))

    @cached_property
    def num_parameters(self) -> int:
        """Elements in the layer."""
        return sum(weight.numel for weight in self.weights())


def _linears(part: object) -> Iterator[Linear]:
    if isinstance(part, Linear):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _linears(item)
    elif isinstance(part, Struct):
        for name in part.__struct_fields__:
            yield from _linears(getattr(part, name))


class Buffer(Struct, frozen=True):
    """A tensor that is kept but not trained (rotary frequencies, causal masks)."""

    name: str
    shape: tuple[int, ...]
    bits: int = 32

    @property
    def num_bytes(self) -> int:
        """Bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.bits // 8


class Arch(Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """A whole model: what comes before the stack, the stack, what comes after."""

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
    head: Linear | None = None  # None where the output is the (tied) embedding
    tied: bool = False
    head_extra: tuple[Weight, ...] = ()
    logit_softcap: float | None = None
    windows: tuple[int | None, ...] = ()  # sliding window per layer, None where full
    buffers: tuple[Buffer, ...] = ()
    trains: bool = True  # False: parameters and cache only, no activations
    tower: tuple[Weight, ...] = ()  # what pictures pass through, beside the text model
    encoder_len: int = 0  # most tokens that cross-attention reads
    left_out: tuple[str, ...] = ()  # what is not counted, a sentence each
    mtp_parameters: int = 0  # multi-token-prediction weights that are published beside the model
    layer_names: tuple[str, ...] = ()  # where they are not layer_prefix.index (T5's two stacks)
    logit_scale: float | None = None  # logits are multiplied by it after the head
    around: tuple[tuple[tuple[int, ...], ...], ...] = ()  # a record's modules before and behind
    share: Share | None = None  # where its parameters are scaled: see scaling.py

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
        """What stands behind the stack: final norm, head."""
        return iter(self._after)

    @cached_property
    def _after(self) -> tuple[Weight, ...]:
        return tuple(self._behind())

    def _behind(self) -> Iterator[Weight]:
        if self.final_norm is not None:
            yield from self.final_norm.weights()
        if self.head is not None:
            yield from self.head.weights()
        yield from self.head_extra

    @cached_property
    def embedding_parameters(self) -> int:
        """Elements before the stack."""
        norm = self.embedding_norm
        return sum(w.numel for w in self.embedding) + sum(
            w.numel for w in (norm.weights() if norm else ())
        )

    @cached_property
    def after_parameters(self) -> int:
        """Elements behind the stack."""
        return sum(weight.numel for weight in self.after_weights())

    @cached_property
    def num_parameters(self) -> int:
        """Elements in the whole model; the count that is given, where it is scaled."""
        if self.share is not None:
            given: int = self.share[0]
            return given
        stack = sum(layer.num_parameters for layer in self.layers)
        return self.embedding_parameters + stack + self.after_parameters

    @property
    def own_parameters(self) -> int:
        """Elements in the whole model, before they were scaled."""
        return self.num_parameters if self.share is None else self.share[1]

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are plain numbers."""
        return fields_only_ints(self)

    @cached_property
    def tower_parameters(self) -> int:
        """Elements of the tower, which `num_parameters` leaves out."""
        return sum(weight.numel for weight in self.tower)

    @cached_property
    def num_weights(self) -> int:
        """Parameters, counted as tensors."""
        return sum(1 for _ in self.weights())

    @cached_property
    def neighbours(self) -> frozenset[tuple[int, int, int, int]]:
        """Each parameter as a loop over them meets it: elements of the one before, its own, and
        its rows and columns (a vector has none).
        """
        found = set()
        before = 0
        for weight in self.weights():
            sizes = [size for _, size in weight.dims]
            rows, columns = sizes[-2:] if len(sizes) > 1 else (0, 0)
            found.add((before, weight.numel, rows, columns))
            before = weight.numel
        return frozenset(found)

    def of_layer(self, buffer: Buffer) -> bool:
        """Whether a buffer is one of a layer's."""
        return buffer.name.startswith(f"{self.layer_prefix}.")

    @cached_property
    def layer_buffers(self) -> tuple[Buffer, ...]:
        """The buffers of one layer, where all have the same; else none."""
        count = len(self.layers)
        found = tuple(b for b in self.buffers if self.of_layer(b))
        first = found[: len(found) // count]
        same = tuple((b.shape, b.bits) for b in found) == count * tuple(
            (b.shape, b.bits) for b in first
        )
        return first if same else ()

    @cached_property
    def largest_weight(self) -> int:
        """Most elements in one parameter."""
        stack = (w for layer, _, _ in self.runs for w in layer.weights())
        return max(w.numel for w in (*self.embedding, *stack, *self.after_weights()))

    @cached_property
    def largest_layer_parameters(self) -> int:
        """Most elements that one module owns directly, DeepSpeed's "largest layer"."""
        sizes: dict[str, int] = {}
        seen = {id(layer): layer for layer in self.layers}.values()
        groups = [("", w) for w in (*self.tower, *self.embedding, *self.after_weights())]
        groups += [(f"layer{i}.", w) for i, layer in enumerate(seen) for w in layer.weights()]
        for prefix, weight in groups:
            module = prefix + weight.name.rpartition(".")[0]
            sizes[module] = sizes.get(module, 0) + weight.numel
        return max(sizes.values())

    @cached_property
    def runs(self) -> tuple[tuple[Layer, int, int], ...]:
        """Stretches of equal layers: (layer, first index, count)."""
        found: list[tuple[Layer, int, int]] = []
        for index, layer in enumerate(self.layers):
            if found and (found[-1][0] is layer or found[-1][0] == layer):
                kept, first, count = found[-1]
                found[-1] = (kept, first, count + 1)
            else:
                found.append((layer, index, 1))
        return tuple(found)

    @cached_property
    def window_runs(self) -> tuple[tuple[Layer, int | None, int, int], ...]:
        """Stretches of one layer with one window: (layer, window, first index, count)."""
        return merged(
            (layer, window, index, 1)
            for index, (layer, window) in enumerate(zip(
                self.layers, self.windows or (None,) * len(self.layers), strict=True
            ))
        )  # fmt: skip


def merged(
    runs: Iterable[tuple[Layer, int | None, int, int]],
) -> tuple[tuple[Layer, int | None, int, int], ...]:
    """Stretches (layer, window, first, count), with neighbours that are alike as one."""
    found: list[tuple[Layer, int | None, int, int]] = []
    for layer, window, first, count in runs:
        if found and found[-1][1] == window and found[-1][0] is layer:
            kept, _, start, before = found[-1]
            found[-1] = (kept, window, start, before + count)
        else:
            found.append((layer, window, first, count))
    return tuple(found)
