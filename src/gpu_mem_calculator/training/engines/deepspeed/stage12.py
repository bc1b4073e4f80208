"""ZeRO 1 and 2: a flat copy of the weights on every rank, one slice of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from msgspec.structs import replace

from ....ledger.ledger import COMM, GRAD, OPTIM, PARAM, TEMP, Entry
from ....ledger.num import Num, larger
from ...step.layer_groups import LayerGroups
from ...step.states import gradient_entries as autograd_gradients
from .layout import BUILD, SETUP, Runs, ZeroLayout, always, listed, named, never
from .modules import layer_sizes
from .shards import largest_owned, owned_elements, slice_elements
from .sizes import FP32, norm_bytes
from .stage0 import FUSED_ADAM, update_entry

FILE = "runtime/zero/stage_1_and_2.py"


def state_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """Weights, masters, optimizer states and start-up."""
    entry, sizes, setup = plan.entry, plan.sizes, (SETUP,)
    beside, whole = f"{FILE}:449 the flat copy is allocated beside them", sizes.unflattened
    yield entry("parameters", PARAM, sizes.flat, always, f"{FILE}:441", (BUILD, SETUP))
    yield entry("parameters before flattening", PARAM, whole, never, beside, (BUILD,))
    if plan.offload == "none":
        gradients = sizes.step_grad
        yield entry("fp32 master weights", OPTIM, sizes.masters, always, f"{FILE}:560", setup)
        yield entry("fp32 gradients at start-up", GRAD, gradients, never, f"{FILE}:937", setup)
        yield entry(plan.states_name, OPTIM, sizes.states, always, FUSED_ADAM)
        yield update_entry(plan, sizes)
    else:
        name = "gradient staging for offload"
        yield entry(name, COMM, sizes.staging, always, f"{FILE}:653", setup)


def step_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """The copies of the slice's gradients that the optimizer's step makes."""
    if plan.offload != "none":
        return
    sizes, cast, step = plan.sizes, "optimizer.cast", "optimizer"
    piece = reduce(larger, (largest_owned(runs, local) for runs, local in _slices(plan)))
    name, where = "fp64 copy for the gradient norm", f"{FILE}:2684, runtime/zero/utils.py:59"
    yield plan.entry(name, TEMP, norm_bytes(piece), named("optimizer.norm"), where)
    if sizes.width < FP32:
        name = "slice's gradients, flat"
        yield plan.entry(name, GRAD, sizes.step_flat, named(cast), f"{FILE}:3103")
    yield plan.entry("fp32 gradients", GRAD, sizes.step_grad, named(cast, step), f"{FILE}:3115")


def _slices(plan: ZeroLayout) -> Iterator[tuple[Runs, Num]]:
    """The parameters of each group, and the elements of this rank's slice of them."""
    for runs in plan.parameter_groups:
        yield runs, slice_elements(listed(runs), plan.ranks)


def owned_by_rank(plan: ZeroLayout) -> Num:
    """Elements of the parameters that start in this rank's slices."""
    return sum(owned_elements(runs, local) for runs, local in _slices(plan))


def whole_gradients(plan: ZeroLayout, stack: LayerGroups) -> Iterator[Entry]:
    """Gradients that stay where autograd puts them until they are reduced (stages 0 and 1)."""
    run = plan.run
    table, head = run.arch.embedding_parameters, run.arch.after_parameters
    if run.arch.tied:  # stages of a pipeline have a copy each
        shared = run.arch.embedding[0].numel
        table, head = table - (0 if plan.copied else shared), head + shared
    if run.frozen:
        table = head = 0
    layers = tuple((b.title, sum(layer_sizes(b.layer, run.adapter))) for b in stack)
    stays = run.precision == "fp32" or plan.bf16_optimizer
    steps = {"optimizer", "optimizer.cast", "optimizer.norm"} if plan.stage else {"optimizer"}
    if stays and not plan.stage:  # bf16_optimizer.py:390-430 clears them when it has stepped
        steps = set()
    for entry in autograd_gradients(run, layers, table, head, plan.width * 8, plan.instants):
        yield replace(entry, live={n: c for n, c in entry.live.items() if n not in steps})
