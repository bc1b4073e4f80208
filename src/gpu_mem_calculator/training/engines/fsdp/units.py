"""FSDP2's units: what one `fully_shard` call shards, gathers and reduces.

Every layer is a unit, the root is everything else. A parameter is split along its first dimension
and padded to equal shards, so a tensor whose first dimension is short (a LoRA matrix, a stack of
experts) takes more than its share. torch 2.13 distributed/fsdp/_fully_shard: `F` below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from ....ledger.num import EMPTY, Bytes, Num, ceil_div, larger, power_of_two, sized
from ....models.arch.adapters import Adapter, adapted_linears
from ....models.arch.arch import Layer
from ....models.arch.blocks import Linear, Weight
from ....pytorch.autograd.events import BlockEvents, EventRecorder
from ....run.run import Run

IN_BLOCK = re.compile(r"\.(?:layers|blocks|resblocks|layer)\.\d+\.")


class UnitBits(Struct, frozen=True):
    """Bits of a parameter's shard, of the gathered parameter and its gradient, of the reduction."""

    stored: int
    compute: int
    reduce: int


class UnitParameter(Struct, frozen=True):
    """One parameter of a unit: its dimensions, its bits, whether it is trained."""

    weight: Weight
    bits: UnitBits
    trained: bool


class ParameterBytes(Struct, frozen=True):
    """Sizes of one parameter on one rank.

    original: bytes of the parameter before it is sharded
    shard, cast: bytes of the shard as it is stored, and in the compute dtype
    whole: bytes of the gathered parameter in the compute dtype, padding included
    elements: of the shard
    casts: the compute dtype is not the dtype of the shard
    """

    original: Bytes
    shard: Bytes
    cast: Bytes
    whole: Bytes
    elements: Num
    trained: bool
    casts: bool


class FsdpUnit(Struct, frozen=True, kw_only=True):
    """Bytes of one unit on one rank; two fields are elements."""

    shard: Bytes = EMPTY  # the parameters it stores
    cast: Bytes = EMPTY  # their copy in the compute dtype, where that is another one
    gathered: Bytes = EMPTY  # whole parameters in the compute dtype; as big as the flat buffer
    grads: Bytes = EMPTY  # whole gradients in the compute dtype
    last_grad: Bytes = EMPTY  # the whole gradient of the last parameter
    reduce_in: Bytes = EMPTY  # reduce-scatter's flat input, in the reduce dtype
    reduced: Bytes = EMPTY  # its flat output
    shard_grads: Bytes = EMPTY  # sharded gradients, in the dtype of the shards
    converted: Bytes = EMPTY  # shard_grads where they are a cast of `reduced`, else 0
    trained_elements: Num = 0  # elements of its trained shards
    largest_trained: Num = 0  # elements of the largest of them
    pinned: Bytes = EMPTY  # under offload: pinned host blocks of the shards
    pinned_grads: Bytes = EMPTY  # and of their gradients
    staging: Bytes = EMPTY  # what one rank alone needs beyond `gathered` while it gathers
    parameters: tuple[ParameterBytes, ...] = ()

    @property
    def originals(self) -> tuple[Bytes, ...]:
        """Bytes of each parameter before it is sharded."""
        return tuple(parameter.original for parameter in self.parameters)

    @property
    def trained_tensors(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.trained for parameter in self.parameters)


SUMS = tuple(name for name in FsdpUnit.__struct_fields__ if name != "parameters")


def shard_elements(weight: Weight, ranks: Num) -> Num:
    """Elements of one rank's padded shard: ceil(d0 / ranks) rows (F/_fsdp_param.py:298-316)."""
    count: Num = ceil_div(weight.dims[0][1], ranks)
    for _, size in weight.dims[1:]:
        count = count * size
    return count


def _scaled_elements(run: Run, parameter: UnitParameter, ranks: Num) -> Num:
    """Elements of one rank's shard, scaled to the run's parameter count; adapters are not."""
    elements = shard_elements(parameter.weight, ranks)
    return elements if run.frozen and parameter.trained else run.scaled(elements)


def fsdp_unit(
    run: Run, parameters: Sequence[UnitParameter], ranks: Num, *, offload: bool = False
) -> FsdpUnit:
    """The unit of the parameters that one `fully_shard` call owns, over a number of ranks."""
    sums: dict[str, Any] = dict.fromkeys(SUMS, 0)
    sizes: list[ParameterBytes] = []

    def add(name: str, elements: Num, bits: int) -> None:
        sums[name] = sums[name] + sized(elements, bits)

    for parameter in parameters:
        bits, elements = parameter.bits, _scaled_elements(run, parameter, ranks)
        shard, cast = sized(elements, bits.stored), sized(elements, bits.compute)
        casts, whole = bits.compute != bits.stored, sized(elements * ranks, bits.compute)
        original = sized(parameter.weight.numel, bits.stored)
        sizes.append(
            ParameterBytes(original, shard, cast, whole, elements, parameter.trained, casts)
        )
        add("shard", elements, bits.stored)
        if casts or offload:
            add("cast", elements, bits.compute)
        add("gathered", elements * ranks, bits.compute)
        if parameter.trained:
            add("grads", parameter.weight.numel, bits.compute)
            sums["last_grad"] = sized(parameter.weight.numel, bits.compute)
            add("reduce_in", elements * ranks, bits.reduce)
            add("reduced", elements, bits.reduce)
            add("shard_grads", elements, bits.stored)
            if bits.reduce != bits.stored:
                add("converted", elements, bits.stored)
            add("trained_elements", elements, 8)
            sums["largest_trained"] = larger(sums["largest_trained"], elements)
    sums["staging"] = _staging_bytes(sizes, offload=offload)
    if offload:
        sums |= _pinned_bytes(sizes)
    return FsdpUnit(**sums, parameters=tuple(sizes))


def _staging_bytes(parameters: Sequence[ParameterBytes], *, offload: bool) -> Bytes:
    """Peak of a gather by one rank alone, beyond the gathered parameters.

    Each parameter is cast and copied into its gathered tensor while a variable still refers to the
    cast of the one before; under offload it is copied to the GPU first, as it is stored
    (F/_fsdp_param_group.py:437-460, F/_fsdp_param.py:896-901).
    """
    gathered = before = peak = EMPTY
    for parameter in parameters:
        cast = parameter.cast if parameter.casts else EMPTY
        fresh = (parameter.shard if offload else EMPTY) + cast
        copy = parameter.cast if parameter.casts or offload else EMPTY
        peak = larger(peak, gathered + larger(before + fresh, copy + parameter.cast))
        gathered, before = gathered + parameter.cast, copy
    return peak - gathered


def single_rank_events(unit: FsdpUnit, *, offload: bool) -> BlockEvents:
    """Allocations and frees of a gather by one rank alone: see `_staging_bytes`."""
    recorder = EventRecorder()
    before = -1
    gathered: list[int] = []
    for parameter in unit.parameters:
        copy = _copy_shard(recorder, parameter, offload=offload)
        _free(recorder, before)
        before = copy
        gathered.append(recorder.weight(parameter.cast))
    _free(recorder, before)
    return recorder.forward_only(gathered)


def shard_copy_events(unit: FsdpUnit) -> BlockEvents:
    """Allocations and frees when shards come from the host: copied as they are stored, and cast."""
    recorder = EventRecorder()
    copies = [_copy_shard(recorder, parameter, offload=True) for parameter in unit.parameters]
    return recorder.forward_only(copies)


def _copy_shard(recorder: EventRecorder, parameter: ParameterBytes, *, offload: bool) -> int:
    """The tensor of a shard in the compute dtype; -1 where it is the shard itself."""
    copy = recorder.weight(parameter.shard) if offload else -1
    if not parameter.casts:
        return copy
    cast = recorder.weight(parameter.cast)
    _free(recorder, copy)
    return cast


def _free(recorder: EventRecorder, tensor: int) -> None:
    recorder.over((tensor,) if tensor >= 0 else ())


def _pinned_bytes(parameters: Sequence[ParameterBytes]) -> dict[str, Num]:
    """Blocks of pinned host memory, which are powers of two
    (ATen/core/CachingHostAllocator.h:300).
    """
    blocks = [(power_of_two(parameter.shard), parameter.trained) for parameter in parameters]
    grads = sum(block for block, trained in blocks if trained)
    return {"pinned": sum(block for block, _ in blocks), "pinned_grads": grads}


def adapter_weights(linear: Linear, adapter: Adapter) -> Iterator[Weight]:
    """LoRA's matrices of a projection: A is (r, in), B is (out, r); DoRA adds a magnitude."""
    yield Weight(f"{linear.name}.lora_A", (("lora", adapter.rank), linear.ins))
    yield Weight(f"{linear.name}.lora_B", (linear.outs, ("lora", adapter.rank)))
    if adapter.dora:
        yield Weight(f"{linear.name}.magnitude", (linear.outs,))


def layer_parameters(
    run: Run, layer: Layer, base: UnitBits, adapter: UnitBits
) -> list[UnitParameter]:
    """A layer's parameters in torch's order. With adapters the base is sharded, too, but only the
    adapters are trained. `base`, `adapter`: their bits.
    """
    if run.adapter is None:
        return [UnitParameter(weight, base, True) for weight in layer.weights()]
    rest = list(adapted_linears(layer, run.adapter.targets))
    parameters: list[UnitParameter] = []

    def add_adapter(linear: Linear, targets: Adapter) -> None:
        weights = adapter_weights(linear, targets)
        parameters.extend(UnitParameter(weight, adapter, True) for weight in weights)

    for module, weights in groupby(layer.weights(), lambda w: w.name.rpartition(".")[0]):
        parameters += [UnitParameter(weight, base, False) for weight in weights]
        linear = next((one for one in rest if f".{module}".endswith(f".{one.name}")), None)
        if linear is not None:
            rest.remove(linear)
            add_adapter(linear, run.adapter)
    for linear in rest:
        add_adapter(linear, run.adapter)
    return parameters


def embedding_parameters(run: Run, base: UnitBits) -> list[UnitParameter]:
    """The parameters before the layers, and those of a vision tower outside its blocks."""
    arch, norm = run.arch, run.arch.embedding_norm
    weights = [*arch.embedding, *(norm.weights() if norm else ())]
    seen, outside = bool(run.trained_tower), (w for w in arch.tower if not IN_BLOCK.search(w.name))
    tower = [UnitParameter(weight, base, seen) for weight in outside]
    return [*tower, *(UnitParameter(weight, base, not run.frozen) for weight in weights)]


def head_parameters(run: Run, base: UnitBits) -> list[UnitParameter]:
    """The parameters after the layers: final norm and head, unless that is the tied embedding."""
    return [UnitParameter(weight, base, not run.frozen) for weight in run.arch.after_weights()]


def tower_shards(run: Run, ranks: Num) -> list[Num]:
    """Elements of the shards of each parameter in a vision tower's blocks: units like the layers
    (transformers 5.17.0 `_no_split_modules` names both), of which one is gathered at a time.
    """
    blocks = (weight for weight in run.arch.tower if IN_BLOCK.search(weight.name))
    return [shard_elements(weight, ranks) for weight in blocks]
