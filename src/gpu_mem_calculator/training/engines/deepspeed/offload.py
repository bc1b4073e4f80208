"""What offload puts into host RAM and onto NVMe, for one rank.

Pinned tensors come from torch's caching host allocator, which rounds a block up to a power of
two (torch 2.11 aten/src/ATen/core/CachingHostAllocator.h). None of this is measured yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ....ledger.ledger import (
    CHECKPOINTED,
    COMM,
    CPU,
    FIRST,
    GRAD,
    NVME,
    OPTIM,
    PARAM,
    SECOND,
    Entry,
)
from ....ledger.num import (
    Bytes,
    Num,
    ceil_div,
    choose,
    holds,
    larger,
    power_of_two,
    round_up,
    sized,
    smaller,
)
from ....ledger.units import MIB
from ....run.recompute import FULL
from ...optimizers import OPTIMIZERS
from ...step.instants import Instants, StepInstant, in_flight
from ...step.layer_groups import LayerGroups
from .layout import BUILD, SETUP, ZeroLayout, always
from .options import option
from .shards import shard_elements
from .stage3 import sub_group
from .stage12 import owned_by_rank

ALIGN = 1024  # bytes: 1024 × aio.intra_op_parallelism, runtime/swap_tensor/utils.py:14
SWAPPED = MIB  # smaller tensors are not swapped: max(1 MiB, aio.block_size)
FILE12, FILE3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
MAX_IN_CPU = 1_000_000_000  # elements that stay in RAM beside parameters on NVMe
SWAP, CPU_ADAM = "runtime/swap_tensor", "ops/adam/cpu_adam.py:158"


def _host(
    plan: ZeroLayout, name: str, kind: str, size: Bytes, source: str, pinned: bool = False
) -> Entry:
    size = power_of_two(size) if pinned else size
    name = f"{name}, {'pinned' if pinned else 'pageable'}"
    return plan.entry(name, kind, size, always, source, (SETUP,), CPU)


def slice_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """Stages 1 and 2: masters, their gradients, states, and the 16-bit copy that is copied back.

    With several micro-batches every parameter that reaches into the slice has its whole gradient on
    the host as well, to which the next ones are added.
    """
    sizes, pin = plan.sizes, plan.pinned
    summed = sized(owned_by_rank(plan) * holds(plan.run.micro_batches > 1), 8 * plan.width)
    yield _host(plan, "fp32 master weights", OPTIM, sizes.masters, f"{FILE12}:560", pin)
    yield _host(plan, "fp32 gradients", GRAD, sizes.step_grad, f"{FILE12}:937", pin)
    yield _host(plan, plan.states_name, OPTIM, sizes.states, CPU_ADAM)
    yield _host(plan, "16-bit weights to copy back", PARAM, sizes.clone, f"{FILE12}:567", pin)
    yield _host(plan, "gradient staging", COMM, sizes.staging, f"{FILE12}:653", pin)
    yield _host(plan, "gradients being added up", GRAD, summed, f"{FILE12}:1818")


def shard_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """Stage 3: optimizer and parameters on the host or on NVMe."""
    sizes, pin = plan.sizes, plan.pinned
    local = sizes.local
    if plan.offload == "cpu":
        yield _host(plan, "fp32 master weights", OPTIM, sizes.masters, f"{FILE3}:1157")
        yield _host(plan, "fp32 gradients", GRAD, sizes.step_grad, f"{FILE3}:1337", pin)
        yield _host(plan, plan.states_name, OPTIM, sizes.states, CPU_ADAM)
    if plan.offload != "none":
        size = sized(local, 8 * plan.width)
        yield _host(plan, "gradient shards", GRAD, size, f"{FILE3}:791", pin)
    if plan.offload == "nvme":
        yield from _optimizer_on_disk(plan, local, sub_group(plan, local)[0])
    if plan.offload_param == "cpu":
        still = shard_elements(plan.frozen_counts, plan.ranks)
        size = sizes.flat + sized(still, 8 * plan.width)
        yield _host(plan, "parameter shards", PARAM, size, f"{FILE3}:891", True)
    if plan.offload_param == "nvme":
        yield from _parameters_on_disk(plan, local)


def _large_shards(plan: ZeroLayout, counts: dict[int, Num], width: int) -> Num:
    """Elements of the shards that are large enough to be swapped; `width`: bytes of an element."""
    shards = ((ceil_div(size, plan.ranks), times) for size, times in counts.items())
    return sum(times * shard * holds(width * shard >= SWAPPED) for shard, times in shards)


def _optimizer_on_disk(plan: ZeroLayout, local: Num, group: Num) -> Iterator[Entry]:
    """Four swap buffers of a sub-group in RAM; master, momentum, variance, gradient on disk."""
    where, swapper = f"{SWAP}/optimizer_utils.py:180", f"{SWAP}/partitioned_optimizer_swapper.py:79"
    tensors = 1 + OPTIMIZERS[plan.run.optimizer].states
    buffers = 4 * round_up(sized(group, 32), ALIGN)
    states = tensors * round_up(sized(local, 32), ALIGN)
    yield _host(plan, "optimizer swap buffers", OPTIM, buffers, where)
    yield _disk(plan, "master weights and optimizer states", OPTIM, states, where)
    large = _large_shards(plan, plan.counts, 4)
    yield _disk(plan, "fp32 gradients", GRAD, sized(large, 32), swapper)


def _parameters_on_disk(plan: ZeroLayout, local: Num) -> Iterator[Entry]:
    """Five swap buffers of 1e8 elements in RAM, up to max_in_cpu elements there, all on disk."""
    where, width = f"{SWAP}/partitioned_param_swapper.py:125", plan.width
    buffers, kept = sized(5 * 100_000_000, 8 * width), sized(smaller(local, MAX_IN_CPU), 8 * width)
    yield _host(plan, "parameter swap buffers", PARAM, buffers, where)
    yield _host(plan, "parameter shards", PARAM, kept, f"{FILE3}:891", True)
    large = _large_shards(plan, plan.counts, width) + _large_shards(plan, plan.frozen_counts, width)
    yield _disk(plan, "parameter shards", PARAM, sized(large, 8 * width), where)


def _disk(plan: ZeroLayout, name: str, kind: str, size: Bytes, source: str) -> Entry:
    return plan.entry(name, kind, size, always, source, (BUILD, SETUP), NVME)


def checkpoints_on_host(
    plan: ZeroLayout, stack: LayerGroups, entries: Iterator[Entry]
) -> Iterator[Entry]:
    """cpu_checkpointing: the inputs that checkpoints keep are moved to the host, except the newest.

    activation_checkpointing/checkpointing.py:510 (keep_last_count is 1), for models that call
    deepspeed.checkpointing, as PipelineModule does. With partition_activations they are pageable.
    """
    run = plan.run
    if not option(run, "cpu_checkpointing"):
        yield from entries
        return
    pinned = not option(run, "partition_activations")
    first = in_flight(run.mesh.pp, run.stage, run.micro_batches)
    later = choose(run.micro_batches > first, first, first - 1)
    full = iter([i for i, block in enumerate(stack) if block.recompute == FULL])
    for entry in entries:
        if entry.role == CHECKPOINTED:
            index = next(full)
            live = [i for i in plan.instants if i.name in entry.live]
            near = {i.name: _newest(i, index, stack, later if i.later else first) for i in live}
            far = {name: count - near[name] for name, count in entry.live.items()}
            size = power_of_two(entry.bytes) if pinned else entry.bytes
            yield replace(entry, name=f"{entry.name} on the host", bytes=size, live=far, place=CPU)
            entry = replace(entry, live=near)
        yield entry


def _newest(instant: StepInstant, index: int, stack: LayerGroups, flight: Num) -> Num:
    """1 where the newest layer that waits for backward is in this group, else 0. The other
    micro-batches in flight do not count: all their inputs are on the host.
    """
    newest: Num = 1
    for number in range(len(stack) - 1, index - 1, -1):
        others = larger(flight - 1, 0) * stack[number].count
        waits = holds(instant.saved[number] > others)
        newest = newest * (waits if number == index else 1 - waits)
    return newest


def with_second(instants: Instants) -> Instants:
    """The instants, with one for the second layer of each group, at which the first
    layer's input is on the GPU already.
    """
    more: list[StepInstant] = []
    for instant in instants:
        if instant.instant.layer == FIRST:
            group = instant.stretch
            saved = tuple(n + 1 if i == group else n for i, n in enumerate(instant.saved))
            numbered = enumerate(instant.grads)
            grads = tuple(larger(n - 1, 0) if i == group else n for i, n in numbered)
            moved = instant.instant.moved(
                f"backward.{group}.second",
                layer=SECOND,
                title=instant.instant.title.replace("first", "second"),
                present=instant.instant.present * holds(instant.grads[group] > 1),
            )
            more.append(replace(instant, instant=moved, saved=saved, grads=grads))
        more.append(instant)
    return tuple(more)
