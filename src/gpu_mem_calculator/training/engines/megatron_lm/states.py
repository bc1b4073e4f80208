"""Weights, main gradients, main weights and optimizer states of a Megatron rank.

With the temporaries of start-up: parameters that move into a buffer, and weights cast to fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from ....ledger.ledger import GRAD, OPTIM, PARAM, TEMP, Entry, instant
from ....ledger.num import EMPTY, Bytes, Num, choose, holds, larger, nothing, sized, smaller
from ....ledger.source import ARITHMETIC, code
from ....models.arch.blocks import Moe
from ....pytorch.modelling.huggingface.inputs import rotary_width
from ....run.phases import OPTIMIZER, STARTUP
from ....run.run import Run
from ...optimizers import FOREACH, OPTIMIZERS, Optimizer, state_bytes
from ...step.instants import Instants
from ...step.optimizer_temps import step_temp_bytes
from ...step.pipeline import PipelineStage
from .options import bits, distributed, fused, gradient_bits
from .parameters import stepped_parameters
from .shards import (
    MegatronShard,
    after_shard,
    embedding_shard,
    experts_apart,
    layer_shard,
    local_vocab,
    made_matrices,
    stepped_shares,
)

Parts = list[tuple[list[Num], int]]  # elements of matrices, and how often they come in a row
Units = list[tuple[Parts, Num]]  # the parts of a unit, how many units


def chunk_shards(run: Run, stage: PipelineStage) -> tuple[MegatronShard, MegatronShard]:
    """The parameters of a stage's first and of its last chunk, which may be the same."""
    one = holds(run.virtual_stages == 1)
    front = embedding_shard(run).times(stage.first)
    back = after_shard(run, stage.first).times(stage.last)
    first, last = front + back.times(one), back + front.times(one)
    for block, low, high in zip(stage.blocks, stage.opening, stage.closing, strict=True):
        layer = layer_shard(run, block.layer)
        first, last = first + layer.times(low), last + layer.times(high)
    return first, last


def moving_bytes(run: Run, stage: PipelineStage, total: Num, width: int, wide: int) -> Bytes:
    """Peak bytes while the distributed optimizer's buffers are made, beyond what they end with.

    Each chunk gets one buffer of weights and gradients for its dense parameters, then one for its
    experts; the old weights are freed when a buffer is made (distributed_data_parallel.py:60-90,
    param_and_grad_buffer.py:1160-1180). `width`, `wide`: bits of a weight, of its gradient. The
    peak is in the first buffer, or in one of the last chunk's.
    """
    first, last = chunk_shards(run, stage)
    begin = sized(first.dense, width + wide) - sized(total, wide)
    end = sized(last.dense, width) - sized(last.experts, wide)
    return larger(begin, larger(end, sized(last.experts, width)))


def widening_bytes(run: Run, stage: PipelineStage, shard: MegatronShard) -> Bytes:
    """Bytes of the 16-bit copy of a weight being cast to fp32, beyond what start-up ends with.

    optimizer.py:1012: `clone().float()`, dense matrices in the model's order, vectors after
    them, experts last. The distributed optimizer casts the rank's part of each buffer,
    which has the parameters in reverse order (distrib_optimizer.py:448); the last chunk's comes
    last.
    """
    split = distributed(run)
    order = -1 if split else 1
    counts = stage.closing if split else stage.held
    front = stage.first * (holds(run.virtual_stages == 1) if split else 1)
    table = local_vocab(run) * run.arch.hidden
    apart = experts_apart(run)
    merged = not (isinstance(apart, int) and apart)
    layers: Units = []
    inside: Units = []
    for block, count in zip(stage.blocks, counts, strict=True):
        made, mlp = made_matrices(run, block.layer), block.layer.mlp
        first, experts, rest = ([size for _, size, _ in part][::order] for part in made)
        dense = [(rest, 1), (first, 1)] if split else [(first, 1), (rest, 1)]
        if isinstance(mlp, Moe):
            if merged:
                dense.insert(0 if split else 2, (experts, int(mlp.num_experts)))
            inside.append(([(experts, 1)], count * (mlp.num_experts // run.mesh.ep)))
        layers.append((dense, count))
    back = stage.last * (1 - stage.first if run.arch.tied else 1)
    tables = [table, embedding_shard(run).dense - table]  # of words, of positions
    ends = ([(tables[::order], 1)], front), ([([table], 1)], back)
    units = [ends[0], *layers, ends[1]][::order]
    if split:
        last = chunk_shards(run, stage)[1]
        parts = stepped_shares(run, last.dense, last.experts)
        shard = replace(last, dense=parts[0], experts=parts[1])
    above = _peak_excess(inside[::order], shard.experts) if inside else EMPTY
    return choose(shard.experts > 0, above, _peak_excess(units, shard.dense))


def _peak_excess(units: Units, total: Num) -> Bytes:
    """The most bytes by which the 16-bit copy of a matrix exceeds the fp32 copies of all that
    follow.

    `total` elements are cast, from the first unit on. The peak can only be near their end: in the
    last unit, or in the one before it; and of equal matrices in the last ones.
    """
    most = EMPTY
    start: Num = 0
    for parts, count in units:
        unit: Num = sum(sum(sizes) * times for sizes, times in parts)
        for at in _near_end(start, unit, count, total):
            for sizes, times in parts:
                part: Num = sum(sizes)
                for place in _near_end(at, part, times, total) if times > 1 else (at,):
                    for size in sizes:
                        piece = smaller(larger(total - place, 0), size) * holds(count > 0)
                        rest = larger(total - place - piece, 0)
                        most = larger(most, sized(piece, 16) - sized(rest, 32))
                        place = place + size
                at = at + part * times
        start = start + count * unit
    return most


def _near_end(start: Num, size: Num, count: Num, total: Num) -> Iterator[Num]:
    """Where the last of `count` parts begins that is not beyond `total`, and the one before it."""
    last = larger(smaller((total - start) // size, count - 1), 0)
    return (start + larger(last - back, 0) * size for back in (1, 0))


EXPERTS, EXPERT_STATES = "optimizer.experts", "states of the experts"
STARTUP_INSTANTS = (
    ("startup.model", "start-up: model built"),
    ("startup.ddp", "start-up: gradient buffers allocated"),
    ("startup.optimizer", "start-up: main weights allocated"),
)
BUFFER_CODE = code("megatron-core 0.19.2 distributed/param_and_grad_buffer.py:947, 1160-1180")
MAIN_CODE = code("megatron-core 0.19.2 optimizer/optimizer.py:1012, distrib_optimizer.py:448")
STEP_CODE = code("megatron-core 0.19.2 optimizer/__init__.py:544-620")
COPIES_CODE = code("megatron-core 0.19.2 optimizer.py:1097")


def stage_shard(run: Run, stage: PipelineStage) -> MegatronShard:
    """Elements of all parameters of one rank of the stage."""
    total = embedding_shard(run).times(stage.first)
    total += after_shard(run, stage.first).times(stage.last)
    for block, count in zip(stage.blocks, stage.held, strict=True):
        total += layer_shard(run, block.layer).times(count)
    return total


def with_experts(instants: Instants) -> Instants:
    """The instants, and the step of the experts after that of the dense parameters.

    optimizer.py ChainedOptimizer steps them in turn. In the first step of an unrolled run the
    experts' states are made when the others' temporaries are freed.
    """
    end = instants[-1]
    experts = instant(EXPERTS, OPTIMIZER, "optimizer step of the experts")
    return (*instants, replace(end, instant=experts))


def implementation(run: Run) -> str:
    """The name of Adam's implementation: Transformer Engine's fused kernel, or torch's foreach."""
    return run.implementation or ("fused" if fused(run) else "foreach")


def optimizer_row(run: Run) -> Optimizer:
    """The optimizer as Megatron-Core calls it, with its default weight decay of 0.01.

    optimizer/optimizer_config.py:162. torch's SGD adds it to a copy of the gradients
    (torch 2.11 optim/sgd.py _multi_tensor_sgd); AdamW scales the weights in place, Adam's copy is
    gone before the square roots are made (optim/adam.py _multi_tensor_adam).
    """
    row = OPTIMIZERS[run.optimizer]
    return replace(row, foreach=1, forloop=1) if row.copied_by_decay else row


def owned(run: Run, shard: MegatronShard) -> Num:
    """Elements that the rank steps.

    The distributed optimizer shards each buffer evenly over the ranks that replicate it
    (optimizer/distrib_optimizer.py).
    """
    dense, experts = stepped_parts(run, shard)
    return dense + experts


def stepped_parts(run: Run, shard: MegatronShard) -> tuple[Num, Num]:
    """Elements that the rank steps of dense parameters, and of experts: two optimizers."""
    if not distributed(run):
        return shard.dense, shard.experts
    return stepped_shares(run, shard.dense, shard.experts)


def state_entries(run: Run, stage: PipelineStage, instants: Instants) -> Iterator[Entry]:
    """2 + 4 + 4 + 8 bytes a parameter with Adam in bf16; 6 + 12 / (dp × cp) distributed.

    In an unrolled run the events of start-up make weights, main gradients and main weights.
    """
    shard = stage_shard(run, stage)
    after = {i.name: 1 for i in instants if i.instant.phase != STARTUP}
    if not run.unrolled:
        yield from _startup_entries(run, stage, shard, after)
    rotary = rotary_width((layer.mixer for layer in run.arch.layers), latent=True) > 0
    live = after | {STARTUP_INSTANTS[-1][0]: 1}
    size = sized(512 * (1 + rotary), 8)
    yield Entry("rotary and loss-scale scalars", PARAM, size, live, ARITHMETIC)
    row = OPTIMIZERS[run.optimizer]
    late = row.copied_by_decay  # momentum is cloned from the copies of gradients
    yield from _step_entries(run, shard, instants) if late else ()
    dense, experts = stepped_parts(run, shard)
    width, copies = 4 * row.states, row.states
    for title, elements in (("states", dense), (EXPERT_STATES, experts)):
        if not nothing(elements):
            name, size = f"{run.optimizer} {title}", state_bytes(row, elements, 32)
            each = _parameter_bytes(run, width, expert=title != "states", copies=copies)
            yield Entry(name, OPTIM, size, after, STEP_CODE, tensors=each)
    yield from () if late else _step_entries(run, shard, instants)


def _startup_entries(
    run: Run, stage: PipelineStage, shard: MegatronShard, after: dict[str, int]
) -> Iterator[Entry]:
    """What start-up makes. While a buffer of the distributed optimizer is made, its parameters
    exist twice.
    """
    model, buffers, optimizer = (name for name, _ in STARTUP_INSTANTS)
    width, wide = bits(run), gradient_bits(run)
    buffered = after | {buffers: 1, optimizer: 1}
    size = sized(shard.total, width)
    always = after | {model: 1, buffers: 1, optimizer: 1}
    yield Entry("parameters", PARAM, size, always, ARITHMETIC)
    if distributed(run):
        size = moving_bytes(run, stage, shard.total, width, wide)
        yield Entry("parameters that move into a buffer", PARAM, size, {buffers: 1}, BUFFER_CODE)
    yield Entry("main gradients", GRAD, sized(shard.total, wide), buffered, BUFFER_CODE)
    if width < 32:
        size = sized(owned(run, shard), 32)
        yield Entry("main weights", OPTIM, size, after | {optimizer: 1}, MAIN_CODE)
        name = "16-bit copy of the weight being widened"
        size = widening_bytes(run, stage, shard)
        yield Entry(name, TEMP, size, {optimizer: 1}, MAIN_CODE)


def _parameter_bytes(
    run: Run, width: int, *, expert: bool | None = None, vectors: bool = True, copies: int = 1
) -> Callable[[], list[Bytes]]:
    """A function that lists `width` bytes for each element of each stepped parameter, in `copies`
    tensors.
    """

    def sizes() -> list[Bytes]:
        return [
            sized(n, 8 * width) // copies
            for tensor, n in stepped_parameters(run)
            for _ in range(copies)
            if expert in (None, tensor.expert) and (vectors or not tensor.vector)
        ]

    return sizes


def _matrix_bytes(run: Run, size: Bytes, *, expert: bool) -> list[Bytes]:
    """Bytes of the fp32 temporaries of the matrices that are stepped, `size` in all.

    The ledger divides the vectors evenly over the parts of the distributed optimizer. The first
    rank's part may have a few more or fewer, so the last matrix is sized to sum to `size`.
    """
    matrices: list[Bytes] = []
    for one in _parameter_bytes(run, 4, expert=expert, vectors=False)():
        matrices.append(min(one, size - sum(matrices, EMPTY)))
    return [*matrices[:-1], size - sum(matrices[:-1], EMPTY)]


def _step_entries(run: Run, shard: MegatronShard, instants: Instants) -> Iterator[Entry]:
    """The temporaries of the step: norms and biases are another group, so the matrices alone set
    its peak.

    Dense parameters and experts are stepped in turn (optimizer.py ChainedOptimizer).
    """
    updates = [i.name for i in instants if i.instant.phase == OPTIMIZER]
    owned_elements = owned(run, shard)
    if gradient_bits(run) < 32:
        title, live = "fp32 copies of the main gradients", dict.fromkeys(updates, 1)
        each = _parameter_bytes(run, 4)
        yield Entry(title, GRAD, sized(owned_elements, 32), live, COPIES_CODE, tensors=each)
    dense, experts = stepped_parts(run, shard)
    dense = dense - shard.vectors * dense // larger(shard.dense, 1)
    row, name = optimizer_row(run), implementation(run)
    for title, size, update in (("", dense, updates[0]), (" of the experts", experts, updates[-1])):
        temp = step_temp_bytes(row, name, size, smaller(shard.largest, owned_elements), 32)
        if not nothing(size) and not nothing(temp):
            whole = f"{run.optimizer} {name} temporaries{title}"
            each = partial(_matrix_bytes, run, temp, expert=bool(title))
            tensors = each if name == FOREACH else None
            yield Entry(whole, TEMP, temp, {update: 1}, STEP_CODE, tensors=tensors)
