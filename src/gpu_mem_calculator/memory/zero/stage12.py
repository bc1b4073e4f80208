"""ZeRO 1 and 2: a flat copy of the weights on every rank, one slice of everything else."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import COMM, GRAD, OPTIM, PARAM, TEMP, Entry
from ...ledger.num import Num, choose, holds, larger, nothing, smaller
from ..optimizers import OPTIMIZERS, state_bytes
from ..stack import Block
from ..states import gradient_entries as made_gradients
from ..timeline import OPTIMIZER, Beat
from .modules import layer_sizes
from .partition import (
    first_bucket,
    largest_owned,
    owned_elements,
    padded,
    reduced_in_order,
    slice_elements,
)
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
    yield from _bucket(plan)
    if plan.offload == "none":
        piece = plan.run.scaled(largest_owned(plan.runs, slice_elements(plan.listed, plan.ranks)))
        yield _owned(plan)
        yield from _step(plan, local, piece)
    if plan.moves:
        for sent in _sends(plan):
            yield from _send_entries(plan, sent)
    else:
        yield _reduced_at_the_end(plan)


class Send(Struct, frozen=True):
    """A bucket that goes off in stage 2: `filled` elements, the largest gradient among them.

    Backward meets parameters from the last to the first, so what goes off are those from
    `start` on. `reaches`: 1 where some of them are in the first rank's slice; `before`: 1 where
    a bucket before this one had some.
    """

    name: str
    filled: int
    largest: int
    start: Num
    reaches: Num
    before: Num


def _sends(plan: Plan) -> Iterator[Send]:
    local = slice_elements(plan.listed, plan.ranks)
    for index, flush in enumerate(plan.flushes.first):
        start = plan.listed - flush.sent
        yield Send(f"flush.{index}", flush.bucket, flush.largest, start, holds(local > start),
                   holds(local > start + flush.bucket))  # fmt: skip
    rest = plan.flushes.rest
    yield Send("epilogue", rest, plan.flushes.rest_largest, 0, 1, holds(local > rest))


def _send_entries(plan: Plan, sent: Send) -> Iterator[Entry]:
    """The copy that is reduced; when it is gone, what is done with the slice's own gradients.

    They are laid out for all of the slice by the first bucket that has some. With offload each
    is copied to fp64 for its norm, then to fp32 on its way to the host. A gradient that is
    larger than the bucket has stayed where it was made.
    """
    flat = plan.width * plan.run.scaled(sent.filled)
    local = slice_elements(plan.listed, plan.ranks)
    several = holds(sent.start // local < (sent.start + sent.filled - 1) // local)
    alone, flat = flat, flat * several  # one rank's part is reduced where it is
    if plan.offload == "none":
        made = plan.width * owned_here(plan) * sent.reaches
        size = choose(sent.before, flat, larger(flat - made, 0))
    else:
        size = flat
        inside = larger(local - sent.start, 0)
        wide = 8 * plan.run.scaled(smaller(sent.largest, inside))
        yield plan.entry("offload: fp64 copy for the norm", TEMP, larger(wide - flat, 0),
                         lambda b: named(sent.name)(b) * plan.boundary(b),
                         f"{FILE}:1874 when the flat copy is gone")  # fmt: skip
    yield plan.entry("bucket, flat copy for reduction", COMM, size, named(sent.name),
                     f"{FILE}:1555")  # fmt: skip
    if sent.filled > plan.bucket:
        yield plan.entry("gradient larger than the bucket", GRAD, alone, named(sent.name),
                         f"{FILE}:1443")  # fmt: skip


def _reduced_at_the_end(plan: Plan) -> Entry:
    """Stage 1, when backward is over: what is needed beside all gradients and the bucket.

    Gradients move into the bucket in the optimizer's order and free as much as the flat copy of
    the bucket takes; only then the slice's own are laid out, or copied to fp64 for offload. A
    first parameter that is larger than the bucket stays where it is, beside its flat copy.
    """
    run, moved = plan.run, _first_bucket(plan)
    local = slice_elements(plan.listed, plan.ranks)
    exact = isinstance(local, int) and all(isinstance(units, int) for _, units in plan.runs)
    if exact and local:
        size = reduced_in_order(plan.runs, plan.bucket, local, plan.trained_width,
                                offload=plan.offload != "none")  # fmt: skip
        return _at_the_end(plan, run.scaled(size))
    alone: Num = 0
    if nothing(moved):
        alone = plan.width * run.scaled(next((s[0] for s, _ in plan.runs if s), 0))
    if plan.offload == "none":
        there = plan.width * owned_here(plan)
    else:
        there = 8 * run.scaled(largest_owned(plan.runs, local))
    return _at_the_end(plan, larger(larger(there - plan.width * run.scaled(moved), alone), 0))


def _at_the_end(plan: Plan, size: Num) -> Entry:
    return plan.entry("slice's gradients beside the bucket", GRAD, size,
                      lambda b: named("epilogue")(b) * plan.boundary(b),
                      f"{FILE}:973, :2183 a gradient in the bucket has no other copy")  # fmt: skip


def _first_bucket(plan: Plan) -> Num:
    """Elements of the first bucket that stage 1 fills; in a pipeline as many as can be."""
    runs = [(sizes, units) for sizes, units in plan.runs if isinstance(units, int)]
    if plan.pipeline or len(runs) < len(plan.runs):
        return smaller(plan.bucket, plan.listed)
    return first_bucket(runs, plan.bucket)


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
                         lambda b: named("epilogue")(b) * plan.boundary(b),
                         f"{FILE}:962")  # fmt: skip


def _owned(plan: Plan) -> Entry:
    """Gradients of the parameters that reach into this rank's slice, whole.

    Stage 2 adds each micro-batch's to the sum of those before, so both are there.
    """
    local = slice_elements(plan.listed, plan.ranks)
    layers_sent = holds(local > plan.listed - plan.flushes.sent_by_layers)
    made: dict[str, Num] = {"embedding.backward": layers_sent}
    for index, ends in enumerate(plan.flushes.sent_before):
        for word, sent in zip(("last", "first"), ends, strict=True):
            made[f"backward.{index}.{word}"] = holds(local > plan.listed - sent) if sent else 0
    made |= {sent.name: sent.reaches for sent in _sends(plan)}

    def live(beat: Beat) -> Num:
        if beat.name in ("optimizer.norm", "optimizer.cast"):
            return 1
        if not plan.moves or beat.instant.phase == OPTIMIZER:
            return 0
        return int(beat.later) + made.get(beat.name.removeprefix("later."), 0)

    return plan.entry("gradients of the slice's parameters", GRAD, plan.width * owned_here(plan),
                      live, f"{FILE}:2183 grads_in_partition")  # fmt: skip


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
    if plan.moves:
        return 0
    return holds(plan.run.micro_batches > 1) if plan.overlap else 1


def owned_here(plan: Plan) -> Num:
    """Elements of the parameters that start in this rank's slice, in the run's own scale."""
    local = slice_elements(plan.listed, plan.ranks)
    return plan.run.scaled(owned_elements(plan.runs, local))


def kept_gradients(plan: Plan, stack: tuple[Block, ...]) -> Iterator[Entry]:
    """Gradients that stay where autograd puts them until they are reduced (stages 0 and 1)."""
    run, stays = plan.run, accumulated(plan)
    if isinstance(stays, int) and not stays:
        return
    table, head = run.arch.embedding_parameters, run.arch.after_parameters
    if run.arch.tied:  # stages of a pipeline have a copy each
        shared = run.arch.embedding[0].numel
        table, head = table - (0 if plan.pipeline else shared), head + shared
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
