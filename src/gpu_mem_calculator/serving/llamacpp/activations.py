"""The compute buffers that a server reserves: its largest graph, cut and laid out.

llama.cpp b10586 src/llama-context.cpp sched_reserve.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.remember import remembered
from ...model.arch import Arch
from .allocator import GraphAllocation
from .graph import graph
from .graph_inputs import GraphRun, LayerDevices, slides
from .placement import ModelFile
from .scheduler import GraphSchedule
from .versions import FEW_DECODED, MANY_DECODED

EACH_END = 2  # equal layers of a device that are laid out at each end of a stretch


@remembered(256, always=True)
def compute_buffers(
    file: ModelFile, how: GraphRun, where: LayerDevices, *, whole: bool = False
) -> tuple[int, ...]:
    """Bytes of each device's buffer, the host's last. `whole`: every layer, equal ones too."""
    kinds = file.kinds()
    every = whole or not how.offload_kqv
    places = range(len(file.arch.layers)) if every else kept_places(file.arch, where, kinds)
    sizes = _laid_out(file.arch, how, where, kinds, places)
    if not MANY_DECODED <= how.build < FEW_DECODED:
        return sizes
    decoding = _laid_out(file.arch, replace(how, tokens=1), where, kinds, places)
    return tuple(map(max, sizes, decoding))


def _laid_out(
    arch: Arch, how: GraphRun, where: LayerDevices, kinds: dict[str, str], places: list[int] | range
) -> tuple[int, ...]:
    cut = GraphSchedule(
        graph(arch, how, where, kinds, places), where.gpus, pipelined=where.pipelined
    )
    return tuple(GraphAllocation(where.gpus).run(cut.leaves, cut.nodes))


def kept_places(arch: Arch, where: LayerDevices, kinds: dict[str, str]) -> list[int]:
    """Layers that show all there is: of equal ones on a device the first and the last."""
    types: dict[str, list[str]] = {}
    if where.host in (*where.layers, *where.experts):  # weights are copied to a GPU
        for name, kind in kinds.items():
            types.setdefault(name.removeprefix("blk.").partition(".")[0], []).append(kind)
    groups: dict[object, list[int]] = {}
    for place, layer in enumerate(arch.layers):
        device, experts = where.layers[place], where.experts[place]
        copied = tuple(types.get(str(place), ())) if where.host in (device, experts) else ()
        key = (device, experts, id(layer), slides(arch, place), copied)
        groups.setdefault(key, []).append(place)
    kept = {place for found in groups.values()
            for place in (*found[:EACH_END], *found[-EACH_END:])}  # fmt: skip
    return sorted(kept | {len(arch.layers) - 1})
