"""Weights, main gradients, main weights and optimizer states of a Megatron rank."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.ledger import GRAD, OPTIM, PARAM, RUNTIME, TEMP, Entry
from ...ledger.num import Num, ceil_div, larger, nothing, smaller
from ...ledger.source import ARITHMETIC, code
from ..optimizers import OPTIMIZERS, Optimizer, state_bytes, step_temp_bytes
from ..pipeline import Stage
from ..run import Run
from ..timeline import OPTIMIZER, Beat
from .cuts import Shard, after_shard, embedding_shard, layer_shard, unsplit_weights
from .options import bits, fused, gradient_bits, option
from .startup import moving_bytes, widening_bytes

STARTUP_BEATS = (
    ("startup.model", "model is built"),
    ("startup.ddp", "gradient buffers are made"),
    ("startup.optimizer", "main weights are made"),
)
BUFFER_CODE = code("megatron-core 0.19.2 distributed/param_and_grad_buffer.py:947, 1160-1180")
MAIN_CODE = code("megatron-core 0.19.2 optimizer/optimizer.py:1012, distrib_optimizer.py:448")
SPLIT_CODE = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp should_split")
STEP_CODE = code("megatron-core 0.19.2 optimizer/__init__.py:544-620")


def stage_shard(run: Run, stage: Stage) -> Shard:
    """Every parameter of one rank of the stage."""
    found = embedding_shard(run).times(stage.first)
    found += after_shard(run, stage.first).times(stage.last)
    for block, held in zip(stage.blocks, stage.held, strict=True):
        found += layer_shard(run, block.layer).times(held)
    return found


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


def owned(run: Run, shard: Shard) -> Num:
    """Parameters that the rank steps.

    The distributed optimizer cuts each buffer evenly over dp × cp, that of the experts over the
    ranks that repeat them: dp × cp / ep (optimizer/distrib_optimizer.py).
    """
    dense, experts = owned_parts(run, shard)
    return dense + experts


def owned_parts(run: Run, shard: Shard) -> tuple[Num, Num]:
    """The dense ones of them, and the experts' weights: optimizers of their own, one by one."""
    if not option(run, "distributed_optimizer"):
        return shard.dense, shard.experts
    ranks = run.mesh.dp * run.mesh.cp
    return ceil_div(shard.dense, ranks), ceil_div(shard.experts * run.mesh.ep, ranks)


def unsplit_entries(run: Run, stage: Stage, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """Rounding of weights and main weights, which start-up puts into fresh segments.

    The distributed optimizer has flat buffers and pieces instead of one tensor a parameter.
    """
    if run.expandable_segments:
        return
    if option(run, "distributed_optimizer"):
        return
    layers = [(b.layer, held) for b, held in zip(stage.blocks, stage.held, strict=True)]
    ends = stage.first + stage.last * (1 - stage.first * run.arch.tied)
    names = [name for name, _ in STARTUP_BEATS]
    everywhere = {b.name: 1 for b in beats}
    yield Entry(name="unsplit blocks of the weights", kind=RUNTIME, live=everywhere,
                bytes=unsplit_weights(run, layers, ends, bits(run)), source=SPLIT_CODE)  # fmt: skip
    if bits(run) < 32:
        later = {n: c for n, c in everywhere.items() if n not in names[:2]}
        yield Entry(name="unsplit blocks of the main weights", kind=RUNTIME, live=later,
                    bytes=unsplit_weights(run, layers, ends, 32, widened=True),
                    source=SPLIT_CODE)  # fmt: skip


def state_entries(run: Run, stage: Stage, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """2 + 4 + 4 + 8 bytes a parameter with Adam in bf16; 6 + 12 / (dp × cp) distributed.

    While one of the distributed optimizer's buffers is made its parameters exist twice.
    """
    shard = stage_shard(run, stage)
    model, buffers, optimizer = (name for name, _ in STARTUP_BEATS)
    after = {b.name: 1 for b in beats if b.name not in (model, buffers)}
    width, wide = bits(run), gradient_bits(run)
    distributed = option(run, "distributed_optimizer")
    weights = shard.total * width // 8
    yield Entry(name="parameters", kind=PARAM, bytes=weights, source=ARITHMETIC,
                live=after | {model: 1, buffers: 1})  # fmt: skip
    if distributed:
        size = moving_bytes(run, stage, shard.total, width // 8, wide // 8)
        yield Entry(name="parameters that move into a buffer", kind=PARAM, bytes=size,
                    live={buffers: 1}, source=BUFFER_CODE)  # fmt: skip
    rotary = any(getattr(x.mixer, "rotary_dim", 0) or getattr(x.mixer, "rope_dim", 0)
                 for x in run.arch.layers)  # fmt: skip
    yield Entry(name="rotary and loss-scale scalars", kind=PARAM, bytes=512 * (1 + rotary),
                live=after, source=ARITHMETIC)  # fmt: skip
    yield Entry(name="main gradients", kind=GRAD, bytes=shard.total * wide // 8,
                live=after | {buffers: 1}, source=BUFFER_CODE)  # fmt: skip
    mine = owned(run, shard)
    if width < 32:
        yield Entry(name="main weights", kind=OPTIM, bytes=mine * 4, live=after, source=MAIN_CODE)
        yield Entry(
            name="16-bit copy of the weight being widened", kind=TEMP, live={optimizer: 1},
            bytes=widening_bytes(run, stage, shard, run.mesh.dp * run.mesh.cp, split=distributed),
            source=MAIN_CODE,
        )  # fmt: skip
    row = OPTIMIZERS[run.optimizer]
    there = {b.name: 1 for b in beats if b.name != optimizer and b.name in after}
    yield Entry(name=f"{run.optimizer} states", kind=OPTIM, bytes=state_bytes(row, mine, 32),
                live=there, source=STEP_CODE)  # fmt: skip
    yield from _step_entries(run, shard, mine, wide, beats)


def _step_entries(
    run: Run, shard: Shard, mine: Num, wide: int, beats: tuple[Beat, ...]
) -> Iterator[Entry]:
    """The step: norms and biases are a group of their own, so matrices alone set its height.

    Dense parameters and experts are stepped one after the other (optimizer.py ChainedOptimizer).
    """
    live = {b.name: 1 for b in beats if b.instant.phase == OPTIMIZER}
    if wide < 32:
        yield Entry(name="fp32 copies of the main gradients", kind=GRAD, bytes=mine * 4,
                    live=live, source=code("megatron-core 0.19.2 optimizer.py:1097"))  # fmt: skip
    dense, experts = owned_parts(run, shard)
    dense = dense - shard.vectors * dense // larger(shard.dense, 1)
    temp = step_temp_bytes(
        optimizer_row(run), implementation(run), larger(dense, experts),
        smaller(shard.largest, mine), 32,
    )  # fmt: skip
    if not nothing(temp):
        yield Entry(name=f"{run.optimizer} {implementation(run)} temporaries", kind=TEMP,
                    bytes=temp, live=live, source=STEP_CODE)  # fmt: skip
