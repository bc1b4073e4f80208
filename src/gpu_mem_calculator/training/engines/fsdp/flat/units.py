"""Flat parameters of FSDP version 1: one for each layer, and one for the root.

A unit's parameters are flattened into one tensor, of which every rank has an equal, padded part.
One rank alone does not shard (`NO_SHARD`): its flat parameter is whole, and a copy of it in the
compute dtype takes the place of the gathered one. torch 2.13 distributed/fsdp: `D` in the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from msgspec import Struct

from .....ledger.num import (
    EMPTY,
    Bytes,
    Num,
    ceil_div,
    holds,
    larger,
    power_of_two,
    round_up,
    sized,
    smaller,
)
from ..units import UnitBits, UnitParameter

ALIGN_BITS = 128  # D/_flat_param.py:2766 _get_aligned_numel: 16 bytes of the compute dtype


class FlatUnit(Struct, frozen=True, kw_only=True):
    """Bytes of one unit on one rank; four fields are elements or tensors."""

    originals: tuple[Bytes, ...]  # the parameters before they are flattened
    depths: tuple[int, ...]  # how deep in the unit the module of each is
    flat: Bytes  # all of them in one tensor, as they are stored
    shard: Bytes  # this rank's part
    cast: Bytes  # its copy that is gathered: in the compute dtype, or from the host
    gathered: Bytes  # the gathered flat parameter in the compute dtype
    alone: Bytes  # with one rank: the copy of the flat parameter that computes
    grads: Bytes = EMPTY  # whole gradients in the compute dtype, one tensor each
    flat_grad: Bytes = EMPTY  # all of these in one tensor
    cast_grad: Bytes = EMPTY  # its copy in the reduce dtype
    padded_grad: Bytes = EMPTY  # and padded to equal parts
    reduced: Bytes = EMPTY  # this rank's part of the sum, in the reduce dtype
    shard_grad: Bytes = EMPTY  # and in the dtype of the shard
    states: tuple[Num, ...] = ()  # elements of each tensor that the optimizer steps
    trained_elements: Num = 0
    trained_tensors: Num = 0
    largest_trained: Num = 0
    pinned: Bytes = EMPTY  # under offload: the pinned host block of the shard
    pinned_grads: Bytes = EMPTY  # and of its gradient
    several: Num = 1  # 1 where several ranks share the unit


class FlatOptions(Struct, frozen=True):
    """What decides how a unit is laid out: the ranks that share it, and two options."""

    ranks: Num
    use_orig_params: bool
    offload: bool


def flat_unit(parameters: Sequence[UnitParameter], bits: UnitBits, how: FlatOptions) -> FlatUnit:
    """The unit of these parameters; `bits`: of all of them."""
    starts, elements = _offsets(parameters, bits, aligned=how.use_orig_params)
    part = ceil_div(elements, how.ranks)
    several = holds(how.ranks > 1)
    casts = bits.compute != bits.stored
    shard = sized(part, bits.stored)
    copies = casts or how.offload
    return FlatUnit(
        originals=tuple(sized(p.weight.numel, bits.stored) for p in parameters),
        depths=_depths(parameters),
        flat=sized(elements, bits.stored),
        shard=shard,
        cast=sized(part, bits.compute) * several if copies else EMPTY,
        gathered=sized(part * how.ranks, bits.compute) * several,
        alone=sized(elements, bits.compute) * (1 - several) if copies else EMPTY,
        several=several,
        pinned=power_of_two(shard),
        **_gradients(parameters, bits, how, elements, part, several),
        **_stepped(parameters, starts, how, part),
    )


def _offsets(
    parameters: Sequence[UnitParameter], bits: UnitBits, *, aligned: bool
) -> tuple[list[Num], Num]:
    """Where each parameter begins in the flat one, and the elements of that.

    With `use_orig_params` each begins at a multiple of 16 bytes (D/_flat_param.py:676-686).
    """
    multiple = ALIGN_BITS // bits.compute if aligned else 1
    starts: list[Num] = []
    total: Num = 0
    for parameter in parameters:
        start = round_up(total, multiple)
        starts.append(start)
        total = start + parameter.weight.numel
    return starts, total


def _depths(parameters: Sequence[UnitParameter]) -> tuple[int, ...]:
    """How many modules deep each parameter is: PEFT puts a projection with adapters one deeper, and
    the adapters two below it.
    """
    adapted = {name for p in parameters if (name := _adapted(p))}

    def depth(parameter: UnitParameter) -> int:
        name = parameter.weight.name
        if _adapted(parameter):
            return name.count(".") + 2
        return name.count(".") + any(name.endswith(f"{one}.weight") for one in adapted)

    return tuple(depth(parameter) for parameter in parameters)


def _adapted(parameter: UnitParameter) -> str:
    """The projection whose adapter the parameter is; "" for none."""
    module, _, last = parameter.weight.name.rpartition(".")
    return module if last.startswith("lora_") else ""


def _gradients(
    parameters: Sequence[UnitParameter],
    bits: UnitBits,
    how: FlatOptions,
    elements: Num,
    part: Num,
    several: Num,
) -> dict[str, Any]:
    """Gradients of a unit of which any parameter is trained: then all of them have one."""
    if not any(parameter.trained for parameter in parameters):
        return {}
    whole = part * how.ranks
    pads = EMPTY
    if not how.use_orig_params:  # else the flat parameter has the padding already
        pads = sized(whole, bits.reduce) * holds(whole > elements) * several
    return {
        "grads": sized(sum((p.weight.numel for p in parameters), 0), bits.compute),
        "flat_grad": sized(whole if how.use_orig_params else elements, bits.compute),
        "cast_grad": sized(elements, bits.reduce) if bits.reduce != bits.compute else EMPTY,
        "padded_grad": pads,
        "reduced": sized(part, bits.reduce),
        "shard_grad": sized(part, bits.stored),
        "pinned_grads": power_of_two(sized(part, bits.stored)),
    }


def _stepped(
    parameters: Sequence[UnitParameter], starts: Sequence[Num], how: FlatOptions, part: Num
) -> dict[str, Any]:
    """What the optimizer of rank 0 steps: the flat shard, or with `use_orig_params` the parts of
    trained parameters that lie in it.
    """
    if how.use_orig_params:
        sizes = [
            smaller(start + parameter.weight.numel, part) - smaller(start, part)
            for parameter, start in zip(parameters, starts, strict=True)
            if parameter.trained
        ]
    else:
        sizes = [part] if any(parameter.trained for parameter in parameters) else []
    none: Num = 0
    return {
        "states": tuple(sizes),
        "trained_elements": sum(sizes),
        "trained_tensors": sum(holds(size > 0) for size in sizes),
        "largest_trained": reduce(larger, sizes, none),
    }
