"""FSDP2 with CPUOffloadPolicy: shards, their gradients and the optimizer on the host.

The GPU holds what is gathered or being reduced and nothing between steps. To gather a unit, every
rank copies its shard to the GPU and casts it there. Where several ranks gather, the copies are
freed before the gathered buffer is copied out, which takes more; one rank alone has no such buffer,
and there the copies count. A reduced gradient is freed on the GPU once its copy to the host is
enqueued (torch 2.13 F/_fsdp_collectives.py:711-743), unless replicas still all-reduce it.

Pinned tensors are rounded up to powers of two by torch's host allocator, which also keeps the
blocks of freed gradients. Line numbers: torch 2.13, `F` as in states.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import COMM, CPU, GRAD, PARAM, TEMP, Entry
from ....ledger.num import EMPTY, Bytes, Num, larger, nothing, sized
from ....ledger.source import code
from ....run.phases import OPTIMIZER
from ...optimizers import FORLOOP
from ...step.states import optimizer_entries
from .instants import START
from .layout import FsdpLayout, UnitLayout

PINNED = "ATen/core/CachingHostAllocator.h:300"
PINNED_CODE = code(f"torch 2.13 F/_fsdp_param.py:1044 reset_sharded_param; {PINNED}")
CACHED_CODE = code(f"torch 2.13 F/_fsdp_collectives.py:737; {PINNED}: blocks stay cached")
PINNING_CODE = code("torch 2.13 nn/modules/module.py to_empty, F/_fully_shard.py _apply")
CLIPPING_CODE = code("torch 2.13 nn/utils/clip_grad.py:95-108 on CPU tensors")
ADDED_CODE = code("torch 2.13 F/_fsdp_collectives.py:730-749: a pageable copy")


class TrainedShards(Struct, frozen=True):
    """Elements of all trained shards of a rank and of the largest one, and how many there are."""

    total: Num
    largest: Num
    tensors: Num

    def stepped(
        self,
        plan: UnitLayout,
        bits: int,
        implementation: str,
        *,
        clipping: bool = False,
        sizes: Sequence[int] = (),
    ) -> Iterator[Entry]:
        """The optimizer's states and temporaries. `bits`: of a shard; `sizes`: elements of each, in
        an unrolled run.
        """
        return optimizer_entries(
            replace(plan.run, clipping=clipping),
            self.total,
            bits,
            plan.step_instants,
            implementation=plan.run.implementation or implementation,
            largest=self.largest,
            tensors=self.tensors,
            sizes=tuple((size, 1) for size in sizes),
        )


def trained_shards(plan: UnitLayout, more: Iterable[Num] = ()) -> TrainedShards:
    """The trained shards of all units, and `more` with these elements."""
    total: Num = 0
    largest: Num = 0
    tensors: Num = 0
    for _, count, unit in plan.units:
        total = total + count * unit.trained_elements
        tensors = tensors + count * unit.trained_tensors
        largest = larger(largest, unit.largest_trained)
    for elements in more:
        total, tensors, largest = total + elements, tensors + 1, larger(largest, elements)
    return TrainedShards(total, largest, tensors)


def staging_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Copies of shards, cast and on the GPU, while one rank alone gathers a unit, beyond the
    gathered parameters themselves.
    """
    if nothing(1 - plan.several) or plan.run.unrolled:  # the units' events contain them
        return
    source = code("torch 2.13 F/_fsdp_param_group.py:437-460 and F/_fsdp_param.py:896-901")
    gathers = [i for i in plan.instants if i.action in ("gather", "regather")]
    alone = 1 - plan.several
    for kind, (title, unit) in enumerate(plan.kinds):
        live = {i.step.name: 1 for i in gathers if plan.layers[i.layer] == kind}
        yield Entry(f"{title}: copies of the shards", COMM, unit.staging * alone, live, source)
    live = {i.step.name: 1 for i in plan.instants if i.action == "root"}
    name, size = "embedding and head: copies of the shards", plan.root.staging * alone
    yield Entry(name, COMM, size, live, source)


def host_shard_entries(plan: FsdpLayout, untied_head: Bytes) -> Iterator[Entry]:
    """Parameters and gradients in pinned memory. `untied_head`: bytes of a tied head's own tensor,
    which is freed when it is tied again.
    """
    steady = {i.step.name: 1 for i in plan.instants}
    always: dict[str, Num] = {START.name: 1, **steady}
    largest = EMPTY
    for title, count, unit in plan.units:
        name, size = f"{title}: sharded parameters, pinned", unit.pinned * count
        yield Entry(name, PARAM, size, always, PINNED_CODE, place=CPU)
        name, size = f"{title}: sharded gradients, pinned", unit.pinned_grads * count
        yield Entry(name, GRAD, size, steady, CACHED_CODE, place=CPU)
        largest = larger(largest, unit.shard)
    name, size = "one unit before it is pinned, a tied head", largest + untied_head
    yield Entry(name, PARAM, size, {START.name: 1}, PINNING_CODE, place=CPU)


def host_step_entries(plan: UnitLayout, trained: TrainedShards, bits: int) -> Iterator[Entry]:
    """The optimizer on the host: its states and temporaries, in pageable memory. `bits`: of a
    shard.

    torch steps in a loop over CPU tensors by default (optim/optimizer.py:161-187:
    foreach is for GPUs). Clipping takes a norm of each tensor, and one tensor of all of them.
    """
    for entry in trained.stepped(plan, bits, FORLOOP):
        if not nothing(entry.bytes):
            yield replace(entry, place=CPU)
    if plan.run.clipping:
        live = {i.name: 1 for i in plan.step_instants if i.instant.phase == OPTIMIZER}
        size = sized(2 * trained.tensors, bits)
        yield Entry("gradient norms", TEMP, size, live, CLIPPING_CODE, place=CPU)
    later = [i for i in plan.instants if i.step.later]
    live = {i.step.name: 1 for i in later if i.action in ("scatter", "scatter.root")}
    name, size = "a gradient that is added to the one before", sized(trained.largest, bits)
    yield Entry(name, GRAD, size, live, ADDED_CODE, place=CPU)
