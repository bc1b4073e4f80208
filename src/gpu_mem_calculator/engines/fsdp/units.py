"""FSDP2's units: what one `fully_shard` call shards, gathers and reduces.

Every layer is a unit, the root is everything else. A parameter is cut along its first dimension
and padded to equal shards, so a tensor whose first dimension is short (a LoRA matrix, a stack of
experts) costs more than its share. torch 2.13 distributed/fsdp/_fully_shard: `F` below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from ...autograd.events import BlockEvents, EventRecorder
from ...ledger.num import Num, ceil_div, larger, power_of_two
from ...model.adapters import Adapter, adapted
from ...model.arch import Layer
from ...model.blocks import Linear, Weight
from ...run.run import Run

IN_BLOCK = re.compile(r"\.(?:layers|blocks|resblocks|layer)\.\d+\.")


class UnitBits(Struct, frozen=True):
    """Bits of a shard, of the gathered parameter and its gradient, and of the reduction."""

    stored: int
    compute: int
    reduce: int


class UnitParameter(Struct, frozen=True):
    """One parameter of a unit: its dimensions, its widths, whether it is trained."""

    weight: Weight
    widths: UnitBits
    trained: bool


class ParameterBytes(Struct, frozen=True):
    """Bytes of one parameter: its shard, the shard in the compute dtype, all of it."""

    shard: Num
    cast: Num
    whole: Num
    elements: Num  # of the shard
    trained: bool
    casts: bool  # the dtype of the arithmetic is not that of the shard


class FsdpUnit(Struct, frozen=True, kw_only=True):
    """Bytes of one unit on one rank."""

    shard: Num = 0  # the parameters it stores
    cast: Num = 0  # their copy in the compute dtype, where that is another one
    gathered: Num = 0  # whole parameters in the compute dtype; the all-gather buffer is as big
    grads: Num = 0  # whole gradients in the compute dtype
    last_grad: Num = 0  # of the last parameter
    reduce_in: Num = 0  # reduce-scatter's flat input, in the reduce dtype
    reduced: Num = 0  # its flat output
    shard_grads: Num = 0  # the gradients that stay, in the dtype of the shards
    converted: Num = 0  # shard_grads where they are a cast of `reduced`, else 0
    stepped: Num = 0  # elements of its shards that are trained
    largest: Num = 0  # of one of them
    pinned: Num = 0  # under offload: the host's blocks for the shards
    pinned_grads: Num = 0  # and for their gradients
    staged: Num = 0  # what one rank alone needs beyond `gathered` to make them
    parts: tuple[ParameterBytes, ...] = ()

    @property
    def tensors(self) -> int:
        """Parameters that are trained."""
        return sum(part.trained for part in self.parts)


SUMS = tuple(name for name in FsdpUnit.__struct_fields__ if name != "parts")


def shard_elements(weight: Weight, ranks: Num) -> Num:
    """Elements of one rank's padded shard: ceil(d0 / ranks) rows (F/_fsdp_param.py:298-316)."""
    count: Num = ceil_div(weight.dims[0][1], ranks)
    for _, size in weight.dims[1:]:
        count = count * size
    return count


def _part(run: Run, piece: UnitParameter, ranks: Num) -> Num:
    """Elements of one rank's shard; adapters keep their size whatever count was given."""
    part = shard_elements(piece.weight, ranks)
    return part if run.frozen and piece.trained else run.scaled(part)


def unit(
    run: Run, pieces: Sequence[UnitParameter], ranks: Num, *, offload: bool = False
) -> FsdpUnit:
    """Add up the parameters that one `fully_shard` call owns."""
    sums: dict[str, Num] = dict.fromkeys(SUMS, 0)
    parts: list[ParameterBytes] = []

    def add(name: str, elements: Num, bits: int) -> None:
        sums[name] = sums[name] + elements * bits // 8

    for piece in pieces:
        widths, part = piece.widths, _part(run, piece, ranks)
        shard, cast = part * widths.stored // 8, part * widths.compute // 8
        casts = widths.compute != widths.stored
        parts.append(
            ParameterBytes(
                shard, cast, part * ranks * widths.compute // 8, part, piece.trained, casts
            )
        )
        add("shard", part, widths.stored)
        if casts or offload:
            add("cast", part, widths.compute)
        add("gathered", part * ranks, widths.compute)
        if piece.trained:
            whole = piece.weight.numel
            add("grads", whole, widths.compute)
            sums["last_grad"] = whole * widths.compute // 8
            add("reduce_in", part * ranks, widths.reduce)
            add("reduced", part, widths.reduce)
            add("shard_grads", part, widths.stored)
            if widths.reduce != widths.stored:
                add("converted", part, widths.stored)
            add("stepped", part, 8)
            sums["largest"] = larger(sums["largest"], part)
    sums["staged"] = _staged(parts, offload=offload)
    if offload:
        sums |= _pinned(parts)
    return FsdpUnit(**sums, parts=tuple(parts))


def _staged(parts: Sequence[ParameterBytes], *, offload: bool) -> Num:
    """The highest moment of a gather by one rank alone, beyond what it leaves.

    Each parameter is cast and copied into its gathered place, while the cast of the one before
    is still named; under offload it is copied to the GPU first, as it is stored
    (F/_fsdp_param_group.py:437-460, F/_fsdp_param.py:896-901).
    """
    made: Num = 0  # gathered so far
    before: Num = 0
    highest: Num = 0
    for part in parts:
        fresh = (part.shard if offload else 0) + (part.cast if part.casts else 0)
        copy = part.cast if part.casts or offload else 0
        highest = larger(highest, made + larger(before + fresh, copy + part.cast))
        made, before = made + part.cast, copy
    return highest - made


def alone_script(one: FsdpUnit, *, offload: bool) -> BlockEvents:
    """How one rank alone makes whole parameters: see `_staged`."""
    reel = EventRecorder()
    named = -1
    left: list[int] = []
    for part in one.parts:
        copy = _copied(reel, part, offload=offload)
        _over(reel, named)
        named = copy
        left.append(reel.weight(part.cast))
    _over(reel, named)
    return _written(reel, left)


def copies_script(one: FsdpUnit) -> BlockEvents:
    """How shards come to the GPU: copied as they are stored, and cast."""
    reel = EventRecorder()
    return _written(reel, [_copied(reel, part, offload=True) for part in one.parts])


def _copied(reel: EventRecorder, part: ParameterBytes, *, offload: bool) -> int:
    """A shard in the compute dtype; negative where it is the shard itself."""
    copy = reel.weight(part.shard) if offload else -1
    if not part.casts:
        return copy
    cast = reel.weight(part.cast)
    _over(reel, copy)
    return cast


def _over(reel: EventRecorder, tensor: int) -> None:
    reel.over((tensor,) if tensor >= 0 else ())


def _written(reel: EventRecorder, left: list[int]) -> BlockEvents:
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events),
                  left=tuple(left))  # fmt: skip


def _pinned(parts: Sequence[ParameterBytes]) -> dict[str, Num]:
    """Blocks of pinned host memory, which are powers of two
    (ATen/core/CachingHostAllocator.h:300).
    """
    pinned: Num = 0
    grads: Num = 0
    for part in parts:
        block = power_of_two(part.shard)
        pinned = pinned + block
        grads = grads + block if part.trained else grads
    return {"pinned": pinned, "pinned_grads": grads}


def adapter_weights(one: Linear, adapter: Adapter) -> Iterator[Weight]:
    """LoRA's matrices of a projection: A is (r, in), B is (out, r); DoRA adds a magnitude."""
    yield Weight(f"{one.name}.lora_A", (("lora", adapter.rank), one.ins))
    yield Weight(f"{one.name}.lora_B", (one.outs, ("lora", adapter.rank)))
    if adapter.dora:
        yield Weight(f"{one.name}.magnitude", (one.outs,))


def layer_pieces(run: Run, layer: Layer, base: UnitBits, extra: UnitBits) -> list[UnitParameter]:
    """A layer's parameters in torch's order; with adapters the base is sharded, too, but only
    they are trained.
    """
    if run.adapter is None:
        return [UnitParameter(weight, base, True) for weight in layer.weights()]
    rest = list(adapted(layer, run.adapter.targets))
    pieces: list[UnitParameter] = []
    for module, weights in groupby(layer.weights(), lambda w: w.name.rpartition(".")[0]):
        pieces += [UnitParameter(weight, base, False) for weight in weights]
        here = next((one for one in rest if f".{module}".endswith(f".{one.name}")), None)
        if here is not None:
            rest.remove(here)
            pieces += [
                UnitParameter(weight, extra, True) for weight in adapter_weights(here, run.adapter)
            ]
    for one in rest:
        pieces += [
            UnitParameter(weight, extra, True) for weight in adapter_weights(one, run.adapter)
        ]
    return pieces


def root_pieces(run: Run, base: UnitBits) -> list[UnitParameter]:
    """Embedding, final norm and head, a tied table once; what a vision tower has beside its
    blocks, for which text has no gradient.
    """
    arch = run.arch
    norm = arch.embedding_norm
    weights = [*arch.embedding, *(norm.weights() if norm else ()), *arch.after_weights()]
    eyes = [UnitParameter(w, base, False) for w in arch.tower if not IN_BLOCK.search(w.name)]
    return [*eyes, *(UnitParameter(weight, base, not run.frozen) for weight in weights)]


def tower_shards(run: Run, ranks: Num, bits: int) -> list[Num]:
    """Bytes of the shards of a vision tower's blocks, which text never gathers: units like the
    layers (transformers 5.17.0 `_no_split_modules` names both).
    """
    blocks = (weight for weight in run.arch.tower if IN_BLOCK.search(weight.name))
    return [shard_elements(weight, ranks) * bits // 8 for weight in blocks]
