"""Weights, main gradients, main weights and optimizer states of a Megatron rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from ...ledger.ledger import GRAD, OPTIM, PARAM, TEMP, Entry, instant
from ...ledger.num import Num, ceil_div, larger, nothing, smaller
from ...ledger.source import ARITHMETIC, code
from ...model.blocks import Moe
from ...run.phases import OPTIMIZER, STARTUP
from ...run.run import Run
from ...step.instants import StepInstant
from ...step.optimizers import FOREACH, OPTIMIZERS, Optimizer, state_bytes, step_temp_bytes
from ...step.pipeline import PipelineStage
from .options import bits, fused, gradient_bits, option
from .parameters import stepped
from .shards import MegatronShard, after_shard, embedding_shard, layer_shard
from .startup import moving_bytes, widening_bytes

EXPERTS, EXPERT_STATES = "optimizer.experts", "states of the experts"
STARTUP_BEATS = (
    ("startup.model", "model is built"),
    ("startup.ddp", "gradient buffers are made"),
    ("startup.optimizer", "main weights are made"),
)
BUFFER_CODE = code("megatron-core 0.19.2 distributed/param_and_grad_buffer.py:947, 1160-1180")
MAIN_CODE = code("megatron-core 0.19.2 optimizer/optimizer.py:1012, distrib_optimizer.py:448")
STEP_CODE = code("megatron-core 0.19.2 optimizer/__init__.py:544-620")


def stage_shard(run: Run, stage: PipelineStage) -> MegatronShard:
    """Every parameter of one rank of the stage."""
    found = embedding_shard(run).times(stage.first)
    found += after_shard(run, stage.first).times(stage.last)
    for block, held in zip(stage.blocks, stage.held, strict=True):
        found += layer_shard(run, block.layer).times(held)
    return found


def with_experts(run: Run, beats: tuple[StepInstant, ...]) -> tuple[StepInstant, ...]:
    """The same beats, and the step of the experts behind that of the dense parameters.

    optimizer.py ChainedOptimizer steps one after the other. In the first step of an unrolled
    run the experts' states are made when the others' temporaries are gone.
    """
    if not any(isinstance(layer.mlp, Moe) for layer in run.arch.layers):
        return beats
    end = beats[-1]
    made = instant(EXPERTS, OPTIMIZER, "optimizer step of the experts")
    return (*beats, replace(end, instant=made))


def implementation(run: Run) -> str:
    """Adam's step: Transformer Engine's fused kernel, or torch's foreach where there is none."""
    return run.implementation or ("fused" if fused(run) else "foreach")


def optimizer_row(run: Run) -> Optimizer:
    """The optimizer as Megatron-Core calls it, with a weight decay of 0.01 unless told otherwise.

    optimizer/optimizer_config.py:162. torch's SGD adds it to a copy of the gradients
    (torch 2.11 optim/sgd.py _multi_tensor_sgd); AdamW scales the weights in place, Adam's copy is
    gone before the square roots are made (optim/adam.py _multi_tensor_adam).
    """
    row = OPTIMIZERS[run.optimizer]
    return replace(row, foreach=1, forloop=1) if run.optimizer.startswith("sgd") else row


def owned(run: Run, shard: MegatronShard) -> Num:
    """Parameters that the rank steps.

    The distributed optimizer cuts each buffer evenly over dp × cp, that of the experts over the
    ranks that repeat them: dp × cp / ep (optimizer/distrib_optimizer.py).
    """
    dense, experts = owned_parts(run, shard)
    return dense + experts


def owned_parts(run: Run, shard: MegatronShard) -> tuple[Num, Num]:
    """The dense ones of them, and the experts' weights: optimizers of their own, one by one."""
    if not option(run, "distributed_optimizer"):
        return shard.dense, shard.experts
    ranks = run.mesh.dp * run.mesh.cp
    return ceil_div(shard.dense, ranks), ceil_div(shard.experts * run.mesh.ep, ranks)


def state_entries(
    run: Run, stage: PipelineStage, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """2 + 4 + 4 + 8 bytes a parameter with Adam in bf16; 6 + 12 / (dp × cp) distributed.

    In an unrolled run start-up plays a script that leaves weights, main gradients and main
    weights behind.
    """
    shard = stage_shard(run, stage)
    after = {b.name: 1 for b in beats if b.instant.phase != STARTUP}
    if not run.unrolled:
        yield from _startup_entries(run, stage, shard, after)
    rotary = any(getattr(x.mixer, "rotary_dim", 0) or getattr(x.mixer, "rope_dim", 0)
                 for x in run.arch.layers)  # fmt: skip
    yield Entry(name="rotary and loss-scale scalars", kind=PARAM, bytes=512 * (1 + rotary),
                live=after | {STARTUP_BEATS[-1][0]: 1}, source=ARITHMETIC)  # fmt: skip
    late = run.optimizer.startswith("sgd")  # a momentum is cloned from the gradients' copies
    for entry in _step_entries(run, shard, beats) if late else ():
        yield entry
    row, (dense, experts) = OPTIMIZERS[run.optimizer], owned_parts(run, shard)
    for title, mine in (("states", dense), (EXPERT_STATES, experts)):
        if not nothing(mine):
            yield Entry(
                name=f"{run.optimizer} {title}", kind=OPTIM, bytes=state_bytes(row, mine, 32),
                live=after, source=STEP_CODE,
                tensors=_each(run, 4 * row.states, expert=title != "states", copies=row.states),
            )  # fmt: skip
    for entry in () if late else _step_entries(run, shard, beats):
        yield entry


def _startup_entries(
    run: Run, stage: PipelineStage, shard: MegatronShard, after: dict[str, Num]
) -> Iterator[Entry]:
    """What start-up makes and leaves; one of the distributed optimizer's buffers has its
    parameters twice while it is made.
    """
    model, buffers, optimizer = (name for name, _ in STARTUP_BEATS)
    width, wide = bits(run), gradient_bits(run)
    distributed = option(run, "distributed_optimizer")
    yield Entry(name="parameters", kind=PARAM, bytes=shard.total * width // 8, source=ARITHMETIC,
                live=after | {model: 1, buffers: 1, optimizer: 1})  # fmt: skip
    if distributed:
        size = moving_bytes(run, stage, shard.total, width // 8, wide // 8)
        yield Entry(name="parameters that move into a buffer", kind=PARAM, bytes=size,
                    live={buffers: 1}, source=BUFFER_CODE)  # fmt: skip
    yield Entry(name="main gradients", kind=GRAD, bytes=shard.total * wide // 8,
                live=after | {buffers: 1, optimizer: 1}, source=BUFFER_CODE)  # fmt: skip
    if width < 32:
        yield Entry(name="main weights", kind=OPTIM, bytes=owned(run, shard) * 4,
                    live=after | {optimizer: 1}, source=MAIN_CODE)  # fmt: skip
        yield Entry(
            name="16-bit copy of the weight being widened", kind=TEMP, live={optimizer: 1},
            bytes=widening_bytes(run, stage, shard, run.mesh.dp * run.mesh.cp, split=distributed),
            source=MAIN_CODE,
        )  # fmt: skip


def _each(
    run: Run, width: int, *, expert: bool | None = None, vectors: bool = True, copies: int = 1
) -> Callable[[], list[int]]:
    """`width` bytes for each element of each parameter that is stepped, in `copies` tensors."""

    def sizes() -> list[int]:
        parts = stepped(run, split=bool(option(run, "distributed_optimizer")))
        return [n * width // copies for tensor, n in parts for _ in range(copies)
                if expert in (None, tensor.expert) and (vectors or not tensor.vector)]  # fmt: skip

    return sizes


def _matrices(run: Run, size: int, *, expert: bool) -> list[int]:
    """Bytes of the fp32 temporaries of the matrices that are stepped, `size` in all.

    The ledger spreads the vectors evenly over the parts of the distributed optimizer. The first
    rank's own part may have a few more or fewer, so the last matrix ends where the ledger says.
    """
    found: list[int] = []
    for one in _each(run, 4, expert=expert, vectors=False)():
        found.append(min(one, size - sum(found)))
    return [*found[:-1], size - sum(found[:-1])]


def _step_entries(
    run: Run, shard: MegatronShard, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """The step: norms and biases are a group of their own, so matrices alone set its height.

    Dense parameters and experts are stepped one after the other (optimizer.py ChainedOptimizer).
    """
    updates = [b.name for b in beats if b.instant.phase == OPTIMIZER]
    mine = owned(run, shard)
    if gradient_bits(run) < 32:
        yield Entry(name="fp32 copies of the main gradients", kind=GRAD, bytes=mine * 4,
                    live=dict.fromkeys(updates, 1), tensors=_each(run, 4),
                    source=code("megatron-core 0.19.2 optimizer.py:1097"))  # fmt: skip
    dense, experts = owned_parts(run, shard)
    dense = dense - shard.vectors * dense // larger(shard.dense, 1)
    row, how = optimizer_row(run), implementation(run)
    for title, size, update in (("", dense, updates[0]), (" of the experts", experts, updates[-1])):
        temp = step_temp_bytes(row, how, size, smaller(shard.largest, mine), 32)
        if not nothing(size) and not nothing(temp):
            yield Entry(
                name=f"{run.optimizer} {how} temporaries{title}", kind=TEMP, bytes=temp,
                live={update: 1}, source=STEP_CODE,
                tensors=partial(_matrices, run, temp, expert=bool(title))
                if how == FOREACH else None,
            )  # fmt: skip
