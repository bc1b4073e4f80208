"""The compute buffers that a server reserves: its largest graph, scheduled and allocated.

llama.cpp b10586 src/llama-context.cpp sched_reserve.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from .allocator import GraphAllocation
from .graph import graph
from .graph_inputs import GraphBuilder, GraphRun, LayerDevices, slides
from .scheduler import GraphSchedule
from .versions import FEW_DECODED, MANY_DECODED
from .weights import ModelFile

EACH_END = 2  # equal layers of a device that a sample has of each end


@remembered(256, always=True)
def compute_buffers(
    file: ModelFile, setting: GraphRun, devices: LayerDevices, *, whole: bool = False
) -> tuple[int, ...]:
    """Bytes of each device's compute buffer, the host's last.

    Without `whole` the graph has a sample of the layers: the result is within a few percent.
    """
    kinds = file.kinds()
    every = whole or not setting.offload_kqv
    places = range(len(file.arch.layers)) if every else sample_layers(file.arch, devices, kinds)

    def sizes(batch: GraphRun) -> tuple[int, ...]:
        whole_graph = graph(GraphBuilder(file.arch, batch, devices, kinds), places)
        schedule = GraphSchedule(whole_graph, devices.gpus, pipelined=devices.pipelined)
        return tuple(GraphAllocation(devices.gpus).run(schedule.leaves, schedule.nodes))

    if not MANY_DECODED <= setting.build < FEW_DECODED:
        return sizes(setting)
    return tuple(map(max, sizes(setting), sizes(replace(setting, tokens=1))))


def sample_layers(arch: Arch, devices: LayerDevices, kinds: dict[str, str]) -> list[int]:
    """A sample of the layers: of equal ones on a device the first and the last EACH_END."""
    types: dict[str, list[str]] = {}
    if devices.host in (*devices.layers, *devices.experts):  # weights are copied to a GPU
        for name, kind in kinds.items():
            types.setdefault(name.removeprefix("blk.").partition(".")[0], []).append(kind)
    groups: dict[object, list[int]] = {}
    for place, layer in enumerate(arch.layers):
        device, experts = devices.layers[place], devices.experts[place]
        copied = devices.host in (device, experts)
        weights = tuple(types.get(str(place), ())) if copied else ()
        key = (device, experts, id(layer), slides(arch, place), weights)
        groups.setdefault(key, []).append(place)
    ends = ((*group[:EACH_END], *group[-EACH_END:]) for group in groups.values())
    return sorted({place for end in ends for place in end} | {len(arch.layers) - 1})
