"""ZeRO 3: a shard of every parameter on every rank, gathered when a module needs it."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import COMM, GRAD, OPTIM, PARAM, TEMP, Entry
from ...ledger.num import Num, ceil_div, choose, larger, smaller
from ..optimizers import OPTIMIZERS, state_bytes
from ..stack import Block
from ..timeline import Beat
from .buckets import EMBEDDING, HEAD
from .coordinator import ANEW, HELD, NEVER, Gathered, Limits, Stack, gathered
from .modules import after_modules, before_modules, layer_modules
from .partition import shard_elements
from .plan import BIRTH, SETUP, Plan, always, named
from .stage0 import update_entry

FILE = "runtime/zero/stage3.py"
ON_ITS_WAY = "runtime/zero/partition_parameters.py:1359 until the gather has begun"


def sub_group(plan: Plan, local: Num, limit: int) -> Num:
    """Elements of the largest sub-group, which the optimizer steps on at once.

    Sub-groups take parameters until they reach the limit (zero/stage3.py:1211), so one goes
    past it by less than its last shard; that last shard is taken as the largest.
    """
    return choose(local > limit, smaller(local, limit + ceil_div(plan.largest, plan.ranks)), local)


def state_entries(plan: Plan, group_limit: int, zero_init: bool) -> Iterator[Entry]:
    """Shards of weights, masters, gradients and optimizer states, and start-up."""
    width, run = plan.width, plan.run
    local = run.scaled(shard_elements(plan.counts, plan.ranks))
    still = run.scaled(shard_elements(plan.frozen_counts, plan.ranks))
    both = (BIRTH, SETUP)
    if plan.offload_param == "none":
        yield plan.entry("parameter shards", PARAM, plan.trained_width * local, always,
                         f"{FILE}:972", both)  # fmt: skip
        yield plan.entry("frozen parameter shards", PARAM, width * still, always,
                         "runtime/zero/partition_parameters.py:1817", both)  # fmt: skip
    whole = max((*plan.counts, *plan.frozen_counts))
    every = plan.trainable + plan.frozen if not zero_init else whole
    yield plan.entry("parameters before they are cut", PARAM, width * every, lambda b: 0,
                     "runtime/zero/partition_parameters.py:1242", (BIRTH,))  # fmt: skip
    yield plan.entry("largest trained parameter, gathered", PARAM,
                     plan.trained_width * plan.largest, lambda b: 0, f"{FILE}:1504",
                     (SETUP,))  # fmt: skip
    if plan.offload_param != "none":
        yield plan.entry("its shard, come from the host", COMM,
                         plan.trained_width * ceil_div(plan.largest, plan.ranks), lambda b: 0,
                         ON_ITS_WAY, (SETUP,))  # fmt: skip
    if plan.contiguous:
        yield plan.entry("gradient bucket", COMM, width * plan.bucket, always, f"{FILE}:779",
                         (SETUP,))  # fmt: skip
    if plan.offload == "none":
        yield from _optimizer(plan, local, sub_group(plan, local, group_limit))


def _optimizer(plan: Plan, local: Num, group: Num) -> Iterator[Entry]:
    """Masters, gradients and states on the GPU, and the step over one sub-group at a time."""
    row = OPTIMIZERS[plan.run.optimizer]
    yield plan.entry("fp32 master weights", OPTIM, 4 * local, always, f"{FILE}:1157", (SETUP,))
    yield plan.entry("gradient shards", GRAD, plan.width * local, always, f"{FILE}:791", (SETUP,))
    yield plan.entry(f"{plan.run.optimizer} states", OPTIM, state_bytes(row, local, 32), always,
                     "ops/adam/fused_adam.py:155")  # fmt: skip
    yield plan.entry("fp64 copy for the gradient norm", TEMP,
                     8 * ceil_div(plan.largest, plan.ranks), named("optimizer.norm"),
                     f"{FILE}:2457")  # fmt: skip
    if plan.width == 2:
        yield plan.entry("sub-group's gradients, flat", GRAD, 2 * group, named("optimizer.cast"),
                         f"{FILE}:2683")  # fmt: skip
    yield plan.entry("sub-group's fp32 gradients", GRAD, 4 * group,
                     named("optimizer.cast", "optimizer"), f"{FILE}:2690")  # fmt: skip
    yield update_entry(plan, group)


def flush_entries(plan: Plan) -> Iterator[Entry]:
    """Reduction of a bucket: a padded copy of it, and per shard what offloading needs.

    One gradient alone that the ranks divide is reduced where it is.
    """
    sent = plan.flushes
    events = [(f"flush.{i}", f.bucket, f.largest, f.single) for i, f in enumerate(sent.first)]
    events.append(("epilogue", sent.rest, sent.rest_largest, sent.rest_single))
    for name, filled, most, single in events:
        size = plan.width * filled
        if single:
            size = choose(ceil_div(filled, plan.ranks) * plan.ranks == filled, 0, size)
        yield plan.entry("bucket, flat copy for reduction", COMM, size, named(name),
                         "runtime/comm/coalesced_collectives.py:102")  # fmt: skip
        if filled > plan.bucket:
            yield plan.entry("gradient larger than the bucket", GRAD, plan.width * filled,
                             named(name), f"{FILE}:1623")  # fmt: skip
        if plan.offload != "none":
            shard = ceil_div(most, plan.ranks)
            if plan.offload == "nvme":
                yield plan.entry("offload: fp32 gradients on their way to NVMe", TEMP,
                                 4 * (ceil_div(filled, plan.ranks) - ceil_div(most, plan.ranks)),
                                 lambda b, this=name: named(this)(b) * plan.boundary(b),  # type: ignore[misc]
                                 f"{FILE}:1447 until all of the bucket's are there")  # fmt: skip
            yield plan.entry("offload: shard's gradient", TEMP, plan.width * shard, named(name),
                             f"{FILE}:2024")  # fmt: skip
            wide = larger(8 * smaller(shard, 250_000_000), 4 * shard)
            yield plan.entry("offload: fp64 copy for the norm, then fp32 to go", TEMP, wide,
                             lambda b, this=name: named(this)(b) * plan.boundary(b),  # type: ignore[misc]
                             f"{FILE}:1440,1960")  # fmt: skip


def shape(plan: Plan, blocks: tuple[Block, ...], limits: Limits) -> Stack:
    """The model for the coordinator: each stretch no longer than what can be live at once.

    Layers beyond that repeat the same fetches and releases, which leaves every figure as it is.
    """
    arch, adapter = plan.run.arch, plan.run.adapter
    most = max(limits.live, limits.reuse)
    layers = tuple(
        (layer_modules(b.layer, adapter), min(int(b.count), most // b.layer.num_parameters + 6),
         (ANEW if b.reentrant else HELD) if b.recompute == "full" else NEVER)
        for b in blocks
    )  # fmt: skip
    wide = frozenset(plan.counts) - frozenset(plan.frozen_counts) if adapter else frozenset()
    return Stack(before_modules(arch), layers, after_modules(arch), arch.tied, plan.width, wide,
                 plan.trained_width)  # fmt: skip


def early(plan: Plan, blocks: tuple[Block, ...], limits: Limits) -> tuple[int, ...]:
    """Layers of each stretch that have run when the most is gathered in forward."""
    stack = shape(plan, blocks, limits)
    held = gathered(stack, limits).forward
    left, found = held.index(max(held)), []
    for _, count, _ in stack.layers:
        found.append(min(count, left))
        left -= found[-1]
    return tuple(found)


def gathered_entries(plan: Plan, blocks: tuple[Block, ...], limits: Limits) -> Iterator[Entry]:
    """Gathered parameters at every instant, and the small ones that always stay gathered."""
    stack = shape(plan, blocks, limits)
    held = gathered(stack, limits)
    small: Num = 0
    for counts, width in ((plan.counts, plan.trained_width), (plan.frozen_counts, plan.width)):
        for size, times in counts.items():
            small = small + (size * times * width if size <= limits.persist else 0)
    yield plan.entry("persistent parameters", PARAM, plan.run.scaled(small),
                     lambda b: int(not b.name.startswith("optimizer")), f"{FILE}:2878")  # fmt: skip
    if plan.offload_param != "none":
        shards = ceil_div(plan.run.scaled(held.fetched), plan.ranks)
        yield plan.entry("shards, come from the host", COMM, shards,
                         lambda b: int(b.work == "layer"), ON_ITS_WAY)  # fmt: skip
    ends = [0]
    for _, count, _ in stack.layers:
        ends.append(ends[-1] + count)
    for beat in plan.beats:
        size = _held(held, ends, plan, beat)
        if size:
            yield plan.entry("gathered parameters", PARAM, plan.run.scaled(size),
                             lambda b, this=beat: int(b is this),  # type: ignore[misc]
                             "runtime/zero/partitioned_param_coordinator.py:355-537")  # fmt: skip


def _held(held: Gathered, ends: list[int], plan: Plan, beat: Beat) -> int:
    """Bytes gathered at one instant."""
    name = beat.name.removeprefix("later.")
    if name in ("loss", "loss.backward"):
        return held.end
    if name == "head.gradient":
        return held.head
    if name == "forward":
        return held.forward[-1]
    if name == "forward.early":
        return max(held.forward)
    if name in ("embedding.backward", "epilogue"):  # leftovers go when backward is over
        return held.embedding
    if name.startswith("backward."):
        block = int(name.split(".")[1])
        place = ends[block + 1] - 1 if name.endswith("last") else ends[block]
        return max(held.layers[place], default=0)
    if name.startswith("flush."):
        flush = plan.flushes.first[int(name.rpartition(".")[2])]
        if flush.block == HEAD:
            return held.head
        if flush.block == EMBEDDING:
            return held.embedding
        place = max(ends[flush.block + 1] - 1 - flush.done, ends[flush.block])
        parts = held.layers[place]
        return parts[min(flush.hook, len(parts) - 1)] if parts else 0
    return 0
