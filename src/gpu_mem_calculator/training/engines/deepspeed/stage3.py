"""ZeRO 3: a shard of every parameter on every rank, gathered when a module needs it."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import COMM, GRAD, OPTIM, PARAM, TEMP, Entry
from ....ledger.num import EMPTY, Num, ceil_div, holds, sized, together
from ....run.phases import OPTIMIZER
from ....run.recompute import FULL
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup, LayerGroups
from .coordinator import NO_RECOMPUTE, RECOMPUTE, RECOMPUTE_HOLDS, ModuleStack
from .layout import BUILD, SETUP, ZeroLayout, always, named, never
from .modules import after_modules, before_modules, head_module, layer_modules, root_modules
from .shards import largest_sub_groups, shard_elements
from .sizes import FP32, ZeroSizes, norm_bytes
from .stage0 import FUSED_ADAM, update_entry

FILE = "runtime/zero/stage3.py"
PARAMETERS = "runtime/zero/partition_parameters.py"
ON_ITS_WAY = f"{PARAMETERS}:1359 until the gather has begun"


def sub_group(plan: ZeroLayout, local: Num) -> tuple[Num, Num, Num]:
    """Elements of the largest sub-group, which the optimizer steps at once; of the one that is
    highest when gradients are cast, and of that one's flat copy.

    local: elements of all shards of the rank
    """
    runs = tuple((sizes, int(units)) for sizes, units in plan.runs)
    width = plan.trained_width if plan.trained_width < FP32 else 0
    sizes = together(lambda n: largest_sub_groups(runs, n, plan.sub_group, width), plan.ranks)
    most, cast, flat = sizes
    if isinstance(most, int) and most == int(local):  # one group, with its formula
        return local, local, local if flat else 0
    return most, cast, flat


def state_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """Shards of weights, masters, gradients and optimizer states, and start-up."""
    entry, width, sizes, setup = plan.entry, plan.width, plan.sizes, (SETUP,)
    still = shard_elements(plan.frozen_counts, plan.ranks)
    both = (BUILD, SETUP)
    if plan.offload_param == "none":
        name, where = "frozen parameter shards", f"{PARAMETERS}:1817"
        yield entry("parameter shards", PARAM, sizes.flat, always, f"{FILE}:972", both)
        yield entry(name, PARAM, sized(still, 8 * width), always, where, both)
    whole = max((*plan.counts, *plan.frozen_counts))
    every = plan.trainable + plan.frozen if not plan.zero_init else whole
    name, where = "parameters before they are sharded", f"{PARAMETERS}:1242"
    yield entry(name, PARAM, sized(every, 8 * width), never, where, (BUILD,))
    name = "largest trained parameter, gathered"
    yield entry(name, PARAM, sizes.staging, never, f"{FILE}:1504", setup)
    if plan.offload_param != "none":
        shard = sized(ceil_div(plan.largest, plan.ranks), 8 * plan.trained_width)
        yield entry("its shard, come from the host", COMM, shard, never, ON_ITS_WAY, setup)
    if plan.contiguous:
        yield entry("gradient bucket", COMM, plan.bucket_bytes, always, f"{FILE}:779", setup)
    if plan.offload == "none":
        yield from _optimizer(plan, sizes, sub_group(plan, sizes.local))


def _optimizer(plan: ZeroLayout, sizes: ZeroSizes, group: tuple[Num, Num, Num]) -> Iterator[Entry]:
    """Masters, gradients and states on the GPU, and the step over one sub-group at a time."""
    entry, setup = plan.entry, (SETUP,)
    local, largest = sized(sizes.local, 8 * plan.width), ceil_div(plan.largest, plan.ranks)
    norm, cast_only = named("optimizer.norm"), named("optimizer.cast")
    yield entry("fp32 master weights", OPTIM, sizes.masters, always, f"{FILE}:1157", setup)
    yield entry("gradient shards", GRAD, local, always, f"{FILE}:791", setup)
    yield entry(plan.states_name, OPTIM, sizes.states, _after_first_step, FUSED_ADAM)
    name = "fp64 copy for the gradient norm"
    yield entry(name, TEMP, norm_bytes(largest), norm, f"{FILE}:2457")
    most, cast, flat = group
    if sizes.width < FP32:
        name, size = "sub-group's gradients, flat", sizes.stepping(flat).step_flat
        yield entry(name, GRAD, size, cast_only, f"{FILE}:2683")
    for where, elements in (("optimizer.cast", cast), ("optimizer", most)):
        name, size = "sub-group's fp32 gradients", sizes.stepping(elements).step_grad
        yield entry(name, GRAD, size, named(where), f"{FILE}:2690")
    yield update_entry(plan, sizes.stepping(most))


def _after_first_step(instant: StepInstant) -> Num:
    return int(not instant.instant.step)


def shape(plan: ZeroLayout, blocks: LayerGroups) -> ModuleStack:
    """The modules of the model, as the coordinator needs them."""
    arch, adapter = plan.run.arch, plan.run.adapter
    layers = tuple((layer_modules(b.layer, adapter), int(b.count), _recompute(b)) for b in blocks)
    wide = frozenset(plan.counts) - frozenset(plan.frozen_counts) if adapter else frozenset()
    before = before_modules(arch)
    if plan.root_head and not arch.around:
        before = root_modules(before, head_module(arch)[0], tied=arch.tied)
    return ModuleStack(
        before,
        layers,
        after_modules(arch),
        arch.tied or plan.root_head,
        plan.width,
        wide,
        plan.trained_width,
        plan.root_head,
        tuple(int(weight.numel) for weight in arch.tower),
    )


def _recompute(group: LayerGroup) -> int:
    if group.recompute != FULL:
        return NO_RECOMPUTE
    return RECOMPUTE if group.reentrant else RECOMPUTE_HOLDS


def persistent_entry(plan: ZeroLayout) -> Entry:
    """Small parameters stay gathered from one step to the next, padded to the ranks.

    One rank's shard is the whole parameter already, where it is on the GPU
    (partition_parameters.py:1560).
    """
    small = EMPTY
    several = holds(plan.ranks > 1) if plan.offload_param == "none" else 1
    for counts, width in ((plan.counts, plan.trained_width), (plan.frozen_counts, plan.width)):
        for size in (size for size in counts if size <= plan.limits.persist):
            whole = ceil_div(size, plan.ranks) * plan.ranks
            small = small + sized(whole * counts[size], 8 * width)

    def live(instant: StepInstant) -> Num:
        return int(instant.instant.phase != OPTIMIZER and not instant.instant.step)

    return plan.entry("persistent parameters", PARAM, small * several, live, f"{FILE}:2878")
