"""The parts of a GPU's memory under a server or transformers, and the bar they are drawn as."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...estimates.calculator import STEP, Estimate
from ...ledger.ledger import ACT, CACHE, PARAM
from ...ledger.units import GIB
from ...run.cuda.runtimes import in_words_of
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, POOL, WEIGHTS, ServerMemory
from ..lines import DIM, WIDTH, Line, stack_widths

# The parts in the order they are drawn: figure, shade, title, colour.
FIGURES = (
    (WEIGHTS, "█", "weights", "blue"),
    (POOL, "▓", "KV cache", "cyan"),
    (ACTIVATION, "▒", "activations", "green"),
    (GRAPHS, "░", "CUDA graphs", "yellow"),
    (NON_TORCH, "░", "libraries", "yellow"),
)
# The parts of a run without a pool: kind, index in FIGURES.
KINDS = ((PARAM, 0), (CACHE, 1), (ACT, 2))
OUTSIDE = ("░", "CUDA context", "yellow")
FREE = "·"


class MemoryPart(Struct, frozen=True):
    """A part of a GPU's memory: how it is drawn, its title, and its bytes."""

    shade: str
    title: str
    bytes: int
    colour: str


def busiest_rank(estimate: Estimate) -> ServerMemory | None:
    """The rank that limits a server; None with transformers."""
    return estimate.served[estimate.result.busiest_stage] if estimate.served else None


def memory_parts(estimate: Estimate) -> list[MemoryPart]:
    """The parts in the order they are drawn; their sum is what the GPU's tool shows, or needs."""
    served, runtime = busiest_rank(estimate), estimate.resolved.run.runtime
    parts = _server_parts(served) if served else _tensor_parts(estimate)
    outside = MemoryPart(OUTSIDE[0], OUTSIDE[1], estimate.result.outside_torch_bytes, OUTSIDE[2])
    return [
        MemoryPart(one.shade, in_words_of(runtime, one.title), one.bytes, one.colour)
        for one in (*parts, outside)
        if one.bytes > 0
    ]


def _server_parts(served: ServerMemory) -> Iterator[MemoryPart]:
    for figure, shade, title, colour in FIGURES:
        yield MemoryPart(shade, title, served.figure(figure), colour)


def _tensor_parts(estimate: Estimate) -> Iterator[MemoryPart]:
    """Tensors at the peak of an inference run; the rest is what the allocator needs beyond."""
    ledger, result = estimate.ledger, estimate.result
    sizes = ledger.parts(ledger.peak_instant(phases=STEP))
    named = 0
    for kind, place in KINDS:
        _, shade, title, colour = FIGURES[place]
        named += int(sizes[kind])
        yield MemoryPart(shade, title, int(sizes[kind]), colour)
    needs = round(result.total_memory_per_gpu_gb * GIB) - result.outside_torch_bytes
    yield MemoryPart("░", "allocator", needs - named, "yellow")


def memory_bar(estimate: Estimate, parts: list[MemoryPart], width: int = WIDTH) -> Line:
    """The memory of the GPU as one bar; dots are free."""
    total = sum(one.bytes for one in parts)
    full = max(estimate.resolved.hardware.card_bytes, total)
    lengths = stack_widths([one.bytes for one in parts], full, width)
    spans = [(p.shade * length, p.colour) for p, length in zip(parts, lengths, strict=True)]
    return [*spans, (FREE * (width - sum(lengths)), DIM)]
