"""PipelineModule: the layers of each stage, and the buffers between stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from msgspec.structs import replace

from ....ledger.ledger import ACT, COMM, Entry
from ....ledger.num import Bytes, Num, holds, take, together
from ....ledger.remember import remembered
from ....ledger.sym import Sym
from ....models.arch.arch import Arch
from ...step.instants import StepInstant, in_flight
from ...step.layer_groups import LayerGroups
from ...step.workspaces import workspace_entries
from .layout import ZeroLayout, always


@remembered(256, always=True)
def uniform(items: int, parts: int) -> tuple[int, ...]:
    """Bounds of parts with equal numbers of items; the first parts have one more
    (runtime/utils.py:606 partition_uniform).
    """
    share, more = divmod(items, parts)
    return tuple(part * share + min(part, more) for part in range(parts + 1))


@remembered(256, always=True)
def balanced_bounds(weights: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """Bounds of the parts with the least difference between the heaviest and the lightest.

    runtime/utils.py:626 partition_balanced: dynamic programming, the last of equals wins.
    """
    items = len(weights)
    if items <= parts:
        return uniform(items, parts)
    prefix = list(accumulate(weights, initial=0))
    best = [
        (size, size) for size in prefix
    ]  # the heaviest and the lightest part of the first n items
    positions = [[0] * (items + 1)]
    for part in range(2, parts + 1):
        row, at = best.copy(), [0] * (items + 1)
        most_low = max(low for _, low in best[part - 1 :])
        for i in range(part, items + 1):
            cost = prefix[-1]
            for k in range(i - 1, part - 2, -1):
                high, low = best[k]
                size = prefix[i] - prefix[k]
                if size - most_low > cost:
                    break  # so is the difference for each lower k
                high, low = (high if high > size else size), (low if low < size else size)
                if high - low < cost or k == i - 1:
                    cost, row[i], at[i] = high - low, (high, low), k
        best = row
        positions.append(at)
    ends = [items]
    for at in reversed(positions):
        ends.append(at[ends[-1]])
    return tuple(reversed(ends))


def specs(arch: Arch) -> tuple[int, ...]:
    """Elements of each pipeline layer: embedding, layers, final norm with the head."""
    head = arch.after_parameters + (arch.embedding[0].numel if arch.tied else 0)
    layers = (int(layer.num_parameters) for layer in arch.layers)
    return (int(arch.embedding_parameters), *layers, int(head))


@remembered(256)
def stage_ends(arch: Arch, parts: int, method: str) -> tuple[int, ...]:
    """Bounds of the stages, in pipeline layers."""
    weights = specs(arch)
    return uniform(len(weights), parts) if method == "uniform" else balanced_bounds(weights, parts)


def bounds(arch: Arch, parts: Num, stage: Num, method: str) -> tuple[Num, Num]:
    """The first and the last-plus-one pipeline layer of a stage; arrays broadcast."""
    if isinstance(parts, int | Sym):
        ends = stage_ends(arch, int(parts), method)
        return take(ends, stage), take(ends, stage + 1)

    def one(count: int, index: int) -> tuple[int, int]:
        ends = stage_ends(arch, count, method)
        return ends[index], ends[index + 1]

    low, high = together(one, parts, stage)
    return low, high


def layers_of_stages(arch: Arch, parts: int, method: str) -> list[int]:
    """The number of transformer layers of each stage."""
    ends, last = stage_ends(arch, parts, method), len(arch.layers) + 1
    return [
        min(high, last) - max(low, 1) if high > 1 and low < last else 0
        for low, high in pairwise(ends)
    ]


def pipeline_workspaces(plan: ZeroLayout, stack: LayerGroups) -> Iterator[Entry]:
    """cuBLAS workspaces; a stage with the embedding alone has no matmul and none."""
    workspaces = workspace_entries(plan.run, plan.instants)
    if not plan.pipeline:
        yield from workspaces
        return
    blocks = sum((block.count for block in stack), plan.last)  # the head's, too
    for entry in workspaces:
        yield replace(entry, bytes=entry.bytes * holds(blocks > 0))


def buffer_entries(plan: ZeroLayout, tokens_bytes: Bytes) -> Iterator[Entry]:
    """Tensors between stages: what is received, copies of received inputs, outputs."""
    run = plan.run
    first, last = holds(run.stage == 0), holds(run.stage == run.mesh.pp - 1)
    flight = in_flight(run.mesh.pp, run.stage, run.micro_batches)

    def working(instant: StepInstant) -> Num:
        return flight * int(bool(instant.work))

    where = "runtime/pipe/engine.py"
    name, both = "received activations or gradients", f"{where}:1284 one buffer for both"
    yield plan.entry(name, COMM, tokens_bytes, always, both)
    yield plan.entry("stage inputs", ACT, tokens_bytes * (1 - first), working, f"{where}:1128")
    yield plan.entry("stage outputs", ACT, tokens_bytes * (1 - last), working, f"{where}:716")
