"""What each tensor of a stream is: its kind and its name, by the origin of its size."""

from __future__ import annotations

from typing import NamedTuple

from ...ledger.ledger import ACT, GRAD, TEMP, Entry
from ...pytorch.autograd.events import BlockEvents
from .refill import Repeated, SizedAs, SizedByBlock, SizedByEntry, WrittenStream, gpu_entries

WORKSPACE = "workspace"


class TensorName(NamedTuple):
    """What a tensor is. `block`: one of a block's own."""

    kind: str
    name: str
    block: bool = False


OTHER = TensorName(TEMP, WORKSPACE)


def tensor_names(written: WrittenStream) -> list[TensorName]:
    """The name of each tensor of a stream."""
    entries = gpu_entries(written.ledger)
    scripts = {id(one.script): TensorName(one.kind, one.name) for one in entries if one.script}
    made: dict[int, list[TensorName]] = {}
    found = [OTHER] * len(written.stream.sizes)
    for tensor, (kind, name) in written.named.items():
        found[tensor] = TensorName(kind, name)
    for origin in written.origins:
        if isinstance(origin, SizedByEntry):
            begin, end, number = origin
            entry: Entry = entries[number]
            found[begin:end] = [TensorName(entry.kind, entry.name)] * (end - begin)
        elif isinstance(origin, SizedByBlock):
            begin, block, own = origin
            if id(block) not in made:
                one = scripts.get(id(block))
                made[id(block)] = [one] * len(block.sizes) if one else _of_block(block)
            names = made[id(block)]
            if own is None:
                found[begin : begin + len(names)] = names
            else:
                found[begin] = names[own]
        elif isinstance(origin, Repeated):
            begin, end, times = origin
            found[end : end + times * (end - begin)] = found[begin:end] * times
        elif isinstance(origin, SizedAs):
            found[origin.tensor] = found[origin.other]
    return found


def _of_block(block: BlockEvents) -> list[TensorName]:
    """The names of a block's tensors, as its code calls them."""
    names, grads = dict(block.names), {tensor for _, tensor in block.drops}
    if block.entry >= 0:
        names.setdefault(block.entry, "layer.input")
    names.setdefault(block.exit_grad, "gradient of the output")
    return [
        TensorName(GRAD if tensor in grads else ACT, names.get(tensor, WORKSPACE), block=True)
        for tensor in range(len(block.sizes))
    ]
