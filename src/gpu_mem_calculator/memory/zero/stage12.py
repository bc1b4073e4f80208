"""ZeRO 1 and 2: a flat copy of the weights on every rank, one slice of everything else."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.ledger import COMM, GRAD, OPTIM, PARAM, TEMP, Entry
from ...ledger.num import Num, choose, holds, larger, smaller
from ..optimizers import OPTIMIZERS, state_bytes
from ..stack import Block
from ..states import gradient_entries as made_gradients
from ..timeline import OPTIMIZER, Beat
from .modules import layer_sizes
from .partition import largest_owned, owned_elements, padded, slice_elements
from .plan import BIRTH, SETUP, Plan, always, in_bucket, named
from .stage0 import update_entry

FILE = "runtime/zero/stage_1_and_2.py"


def state_entries(plan: Plan) -> Iterator[Entry]:
    """Weights, masters, optimizer states and start-up."""
    width, run = plan.width, plan.run
    whole, local = padded(plan.trainable, plan.ranks), slice_elements(plan.trainable, plan.ranks)
    yield plan.entry("parameters", PARAM, width * whole, always, f"{FILE}:441", (BIRTH, SETUP))
    yield plan.entry("parameters before flattening", PARAM, width * plan.trainable, lambda b: 0,
                     f"{FILE}:449 the flat copy is made beside them", (BIRTH,))  # fmt: skip
    if plan.offload == "none":
        yield plan.entry("fp32 master weights", OPTIM, 4 * local, always, f"{FILE}:560", (SETUP,))
        yield plan.entry("fp32 gradients at start-up", GRAD, 4 * local, lambda b: 0,
                         f"{FILE}:937", (SETUP,))  # fmt: skip
        size = state_bytes(OPTIMIZERS[run.optimizer], local, 32)
        yield plan.entry(f"{run.optimizer} states", OPTIM, size, always,
                         "ops/adam/fused_adam.py:155")  # fmt: skip
        yield update_entry(plan, local)
    else:
        yield plan.entry("gradient staging for offload", COMM, width * plan.largest, always,
                         f"{FILE}:653", (SETUP,))  # fmt: skip


def gradient_entries(plan: Plan) -> Iterator[Entry]:
    """The bucket, the slice's gradients, and the step's copies of them."""
    local = slice_elements(plan.trainable, plan.ranks)
    owned = owned_here(plan)
    yield from _bucket(plan)
    if plan.offload == "none":
        yield _owned(plan, owned)
        yield from _step(plan, local, largest_owned(plan.counts, local))
    else:
        piece = smaller(plan.largest, local)
        yield plan.entry("offload: fp64 copy for the norm", TEMP, 8 * piece,
                         named("epilogue", "flush.0", "flush.1"), f"{FILE}:1874")  # fmt: skip
    flat = smaller(plan.bucket, plan.trainable)
    if plan.stage == 2:
        rest = plan.flushes.rest
        # the slice's gradients are laid out after the bucket's copy is gone, unless an earlier
        # bucket has brought some of them already
        held = plan.width * owned * (plan.offload == "none")
        size = choose(owned > plan.bucket, plan.width * rest, larger(plan.width * rest - held, 0))
        yield plan.entry("bucket, flat copy for reduction", COMM, size, named("epilogue"),
                         f"{FILE}:1555")  # fmt: skip
        for index, flush in enumerate(plan.flushes.first):
            yield plan.entry("bucket, flat copy for reduction", COMM, plan.width * flush.bucket,
                             named(f"flush.{index}"), f"{FILE}:1555")  # fmt: skip
    else:
        size = larger(plan.width * (owned * (plan.offload == "none") - flat), 0)
        yield plan.entry("slice's gradients beside the bucket", GRAD, size, named("epilogue"),
                         f"{FILE}:2183 a gradient in the bucket has no other copy")  # fmt: skip


def _bucket(plan: Plan) -> Iterator[Entry]:
    """Made by the first gradient of a backward. Stage 2 frees it when backward ends, stage 1
    when the step's last one ends, so it lives through later micro-batches.
    """
    if not plan.contiguous:
        return
    size = plan.width * plan.bucket * (2 if plan.overlap else 1)

    def live(beat: Beat) -> Num:
        stays = plan.stage == 1 and beat.later and beat.instant.phase != OPTIMIZER
        return int(in_bucket(beat) or stays)

    yield plan.entry("gradient bucket", COMM, size, live, f"{FILE}:3256")
    if plan.pipeline:
        yield plan.entry("gradient bucket of the pipeline", COMM, plan.width * plan.bucket,
                         named("epilogue"), f"{FILE}:962")  # fmt: skip


def _owned(plan: Plan, owned: Num) -> Entry:
    """Gradients of the parameters that reach into this rank's slice, whole.

    Stage 2 adds each micro-batch's to the sum of those before, so both are there.
    """

    def live(beat: Beat) -> Num:
        summed = int(plan.stage == 2 and beat.later and beat.instant.phase != OPTIMIZER)
        if beat.name.removeprefix("later.") == "epilogue" and plan.stage == 2:
            return summed + 1
        if beat.name in ("optimizer.norm", "optimizer.cast"):
            return 1
        return summed

    return plan.entry("gradients of the slice's parameters", GRAD, plan.width * owned, live,
                      f"{FILE}:2183 grads_in_partition")  # fmt: skip


def _step(plan: Plan, local: Num, piece: Num) -> Iterator[Entry]:
    yield plan.entry("fp64 copy for the gradient norm", TEMP, 8 * piece, named("optimizer.norm"),
                     f"{FILE}:2684, runtime/zero/utils.py:59")  # fmt: skip
    if plan.width == 2:
        yield plan.entry("slice's gradients, flat", GRAD, 2 * local, named("optimizer.cast"),
                         f"{FILE}:3103")  # fmt: skip
    yield plan.entry("fp32 gradients", GRAD, 4 * local, named("optimizer.cast", "optimizer"),
                     f"{FILE}:3115")  # fmt: skip


def accumulated(plan: Plan) -> Num:
    """1 where every parameter's gradient stays on the rank through backward.

    That is stage 1; with overlap_comm only while micro-batches accumulate.
    """
    if plan.stage == 0:
        return 1
    if plan.stage > 1:
        return 0
    return holds(plan.run.micro_batches > 1) if plan.overlap else 1


def owned_here(plan: Plan) -> Num:
    """Elements of the parameters that start in this rank's slice, in the run's own scale."""
    listed: Num = 0
    for sizes, units in plan.runs:
        listed = listed + sum(sizes) * units
    return plan.run.scaled(owned_elements(plan.runs, slice_elements(listed, plan.ranks)))


def kept_gradients(plan: Plan, stack: tuple[Block, ...]) -> Iterator[Entry]:
    """Gradients that stay where autograd puts them until they are reduced (stages 0 and 1)."""
    run, stays = plan.run, accumulated(plan)
    if isinstance(stays, int) and not stays:
        return
    table, head = run.arch.embedding_parameters, run.arch.after_parameters
    if run.arch.tied:
        table, head = 0, head + table
    if run.frozen:
        table = head = 0
    layers = tuple((b.title, run.scaled(sum(layer_sizes(b.layer, run.adapter)))) for b in stack)
    steps = {"optimizer", "optimizer.cast", "optimizer.norm"} if plan.stage else {"optimizer"}
    if run.precision == "fp32" and not plan.stage:
        steps = set()
    for entry in made_gradients(
        run, layers, run.scaled(table), run.scaled(head), plan.width * 8, plan.beats
    ):
        live = {n: c * stays for n, c in entry.live.items() if n not in steps}
        yield replace(entry, live=live)
