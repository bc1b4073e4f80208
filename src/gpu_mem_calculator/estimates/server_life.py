"""A server's life: what loading, the profiling pass, the capture of graphs, serving and sleeping
take of a GPU and of a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ..ledger.ledger import CPU, GPU
from ..ledger.units import GIB
from ..run.phases import ASLEEP, CAPTURE, LOADING, PROFILING
from ..run.phases import SERVING as SERVES
from ..run.run import Run
from ..run.served import (
    ACTIVATION,
    ALIVE,
    GRAPHS,
    LOADED,
    NON_TORCH,
    POOL,
    PROFILED,
    SERVING,
    WEIGHTS,
    ServerItem,
    ServerMemory,
)
from ..run.server_host import ServerHost, checkpoint_bytes, is_16_bit
from ..runfile.resolve.resolved_run import ResolvedRun
from .memory_result import host_words
from .node import PhaseMemory, SharedPool, node_memory
from .result import MemoryResult

BEFORE_CAPTURE = (
    WEIGHTS,
    NON_TORCH,
    GRAPHS,
    POOL,
)  # figures: the profiling pass's tensors are freed


def server_life(resolved: ResolvedRun, served: Sequence[ServerMemory]) -> list[PhaseMemory]:
    """The phases of a server, in order."""
    return list(_phases(resolved, served))


def with_life(
    result: MemoryResult, resolved: ResolvedRun, served: Sequence[ServerMemory], outside: int
) -> MemoryResult:
    """A result with the phases of a server and what they take of a node; `outside`: of a GPU,
    beside the phases.
    """
    hardware, phases = resolved.hardware, server_life(resolved, served)
    shared = hardware.shared
    mapped = "n_gpu_layers" in resolved.run.options  # llama.cpp's weights are the pages
    pages = 0 if mapped else max(one.file_bytes for one in phases)
    pool = None
    if shared is not None:
        pool = SharedPool(outside, shared.unsure_bytes, pages if shared.keeps_pages else 0)
    node = node_memory(phases, hardware.node_bytes, hardware.node_read_from, pool)
    return replace(
        result,
        phases=phases,
        host=node,
        host_bytes_per_node=node.bytes_per_node,
        cpu_memory_gb=node.bytes_per_node / GIB,
        decisive=[*result.decisive, *host_words(node)],
    )


def _phases(resolved: ResolvedRun, served: Sequence[ServerMemory]) -> Iterator[PhaseMemory]:
    hosts = [one.host or _usual(resolved.run, one) for one in served]
    by_layer = resolved.run.options.get("n_gpu_layers", ...) is not ...  # llama.cpp: one process
    ranks = len(served) if by_layer else resolved.hardware.gpus_per_node
    processes = 1 if by_layer else ranks
    first = hosts[0]

    def memory(name: str, gpu: int, instant: str, more: int = 0, files: int = 0) -> PhaseMemory:
        each = max(_bytes(one.items, CPU, instant) for one in served)
        if by_layer:  # an item is a GPU's share of the host's buffers
            each = sum(_bytes(one.items, CPU, instant) for one in served) // ranks
        shared = first.first_bytes + more
        return PhaseMemory(
            name=name,
            gpu_bytes=gpu,
            host_bytes=each * ranks + first.rank_bytes * processes + shared,
            process_bytes=each * (ranks if by_layer else 1) + first.rank_bytes + files,
            file_bytes=files,
        )

    files = max(one.file_bytes for one in hosts)
    loading = max(_bytes(one.items, GPU, LOADED.name) for one in served)
    if is_16_bit(resolved.run):
        loading = max(loading, *(one.whole_bytes for one in hosts))
    yield memory(LOADING, loading, LOADED.name, files=files)
    if not by_layer and any(one.figure(ACTIVATION) for one in served):
        trial = max(_bytes(one.items, GPU, PROFILED.name) for one in served)
        yield memory(PROFILING, trial, PROFILED.name)
    if any(one.figure(GRAPHS) for one in served):
        captured = max(sum(map(one.figure, BEFORE_CAPTURE)) for one in served)
        yield memory(CAPTURE, captured, SERVING.name)
    most = max(_bytes(one.items, GPU, SERVING.name) for one in served)
    yield memory(SERVES, most, SERVING.name, more=first.filled_bytes)
    if first.asleep_bytes is not None:
        stays = max(one.figure(NON_TORCH) + one.figure(GRAPHS) for one in served)
        copies = max(one.asleep_bytes or 0 for one in hosts) * ranks
        yield memory(ASLEEP, stays, SERVING.name, more=first.filled_bytes + copies)


def _bytes(items: Sequence[ServerItem], place: str, instant: str) -> int:
    """Bytes of the items in a place that are alive at an instant."""
    return sum(one.bytes for one in items if one.place == place and instant in ALIVE[one.figure])


def _usual(run: Run, served: ServerMemory) -> ServerHost:
    """The pages of a checkpoint, for a server without figures of its own."""
    weights = served.figure(WEIGHTS)
    ranks = int(run.mesh.tp * run.mesh.pp)
    return ServerHost(file_bytes=checkpoint_bytes(run, [weights] * ranks))
