"""Seconds of the collectives inside a layer: tensor, context and expert parallelism.

Ranks are numbered with tensor parallelism fastest, then context, data and pipeline parallelism
(megatron-core 0.19.2 parallel_state.py, order tp-cp-ep-dp-pp).
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import Num, holds, sized
from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Moe
from ...run.engine_row import MEGATRON_2
from ...run.recompute import FULL, SELECTIVE
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.megatron_lm import options as megatron
from ..curves.collectives import collective_seconds
from ..curves.machine import Machine
from .compute import BlockSeconds
from .estimates import EXPOSED_SHARE, LATE_SECONDS
from .flops import head_widths
from .operators import EqualLayers, local_tokens, tokens_of
from .step_seconds import Seconds, without

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, SEND = "all_to_all", "send"


class LayerCollectives(Struct, frozen=True, kw_only=True):
    """Seconds in which a layer's collectives are not hidden, for one micro-batch."""

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    recompute: Seconds = 0.0


def layer_collectives(
    run: Run, engine: str, machine: Machine, kind: EqualLayers, block: BlockSeconds
) -> LayerCollectives:
    """The collectives of one layer; `block`: its kernels, which hide a part of them."""
    if not engine_row(engine).megatron:
        return LayerCollectives()
    tensor = tensor_parallel(run, engine, machine, kind.layer, block)
    context = context_parallel(run, machine, kind, block)
    experts = expert_parallel(run, engine, machine, kind.layer)
    forward = tensor[0] + context[0] + experts
    backward = tensor[1] + context[1] + experts
    again = forward if run.recompute == FULL else 0.0
    if run.recompute == SELECTIVE and "moe" in run.rule.modules:
        again = experts
    return LayerCollectives(forward=forward, backward=backward, recompute=again)


def joined_seconds(machine: Machine, kind: str, num_bytes: Num, ranks: Num, stride: Num) -> Seconds:
    """Seconds of a collective between kernels of a layer: it starts when its last rank arrives."""
    late: Seconds = holds(ranks > 1)
    late = late * (0.0 if kind == SEND else LATE_SECONDS)
    return collective_seconds(machine, kind, num_bytes, ranks, stride) + late


def activation_bytes(run: Run) -> Num:
    """Bytes of the activations of a micro-batch between layers, before sequence parallelism."""
    return sized(tokens_of(run) * run.arch.hidden, megatron.bits(run))


def tensor_parallel(
    run: Run, engine: str, machine: Machine, layer: Layer, block: BlockSeconds
) -> tuple[Seconds, Seconds]:
    """Forward and backward of one layer.

    An all-reduce after each branch, and in backward before it, which runs while the weight's
    gradient is computed (tensor_parallel/layers.py:640), but not in Megatron-DeepSpeed's pipeline.
    Sequence parallelism gathers before and
    reduce-scatters after each branch; backward gathers the input once more for the weight's
    gradient, while the input's is computed.
    """
    branches = int(layer.mixer is not None) + int(_shares_mlp(layer))
    branches = 1 if layer.parallel else branches
    size, tp = activation_bytes(run), run.mesh.tp
    if not run.sequence_parallel:
        reduced = joined_seconds(machine, ALL_REDUCE, size, tp, 1) * branches
        alone = engine_row(engine).layers == MEGATRON_2
        return reduced, reduced if alone else without(reduced, block.weights)
    gathered = joined_seconds(machine, ALL_GATHER, size, tp, 1) * branches
    scattered = joined_seconds(machine, REDUCE_SCATTER, size, tp, 1) * branches
    left = without(gathered + scattered, block.weights + block.weights)
    if run.options.get("tp_comm_overlap"):
        return (gathered + scattered) * EXPOSED_SHARE, gathered * EXPOSED_SHARE + left
    return gathered + scattered, gathered + left


def _shares_mlp(layer: Layer) -> bool:
    """Whether tensor parallelism shards the MLP: experts have parallelism of their own."""
    if isinstance(layer.mlp, Moe):
        return layer.mlp.shared is not None
    return layer.mlp is not None


def context_parallel(
    run: Run, machine: Machine, kind: EqualLayers, block: BlockSeconds
) -> tuple[Seconds, Seconds]:
    """Keys and values go around a ring while attention runs on those that are there; backward
    sends their gradients, too (Transformer Engine 2.18 attention/context_parallel.py).
    """
    mixer = kind.layer.mixer
    if not isinstance(mixer, Attention | LatentAttention):
        return 0.0, 0.0
    tp, cp = run.mesh.tp, run.mesh.cp
    groups = mixer.heads if isinstance(mixer, LatentAttention) else mixer.kv_heads
    width = head_widths(mixer) * groups  # of the keys and values of one token
    size = sized(tokens_of(run) * width // tp, megatron.bits(run))
    ring = joined_seconds(machine, SEND, size, cp, tp) * (cp - 1)
    return without(ring, block.core), without(2 * ring, block.core_backward)


def expert_parallel(run: Run, engine: str, machine: Machine, layer: Layer) -> Seconds:
    """Tokens that go to their experts and back, in one pass.

    All-to-all among the ranks of ep, and a gather and a reduce-scatter among those that share an
    expert; or a gather and a reduce-scatter of all tokens (moe/token_dispatcher.py).
    """
    if not isinstance(layer.mlp, Moe) or engine_row(engine).layers == MEGATRON_2:
        return 0.0
    ep, etp = run.mesh.ep, megatron.expert_tp(run)
    tokens = sized(local_tokens(run) * run.arch.hidden, megatron.bits(run))
    if megatron.option(run, "moe_token_dispatcher_type") == megatron.ALLGATHER:
        ranks = ep * etp
        everyone = tokens * ranks
        gathered = joined_seconds(machine, ALL_GATHER, everyone, ranks, 1)
        return gathered + joined_seconds(machine, REDUCE_SCATTER, everyone, ranks, 1)
    rows = tokens * layer.mlp.top_k
    exchanged = joined_seconds(machine, ALL_TO_ALL, rows, ep, etp) * 2
    gathered = joined_seconds(machine, ALL_GATHER, rows * etp, etp, 1)
    return exchanged + gathered + joined_seconds(machine, REDUCE_SCATTER, rows * etp, etp, 1)


def end_collectives(run: Run, engine: str, machine: Machine) -> tuple[Seconds, Seconds]:
    """Seconds of tensor parallelism in the embedding, and in the head, for one micro-batch.

    The embedding reduces its rows; sequence parallelism gathers the head's input twice, and the
    input's gradient is reduced. The loss reduces three numbers a token (cross_entropy.py:25-140).
    """
    if not engine_row(engine).megatron:
        return 0.0, 0.0
    size, tp = activation_bytes(run), run.mesh.tp
    rows = joined_seconds(machine, ALL_REDUCE, sized(tokens_of(run), 32), tp, 1) * 3
    reduced = joined_seconds(machine, ALL_REDUCE, size, tp, 1)
    if not run.sequence_parallel:
        return reduced, reduced + rows
    gathered = joined_seconds(machine, ALL_GATHER, size, tp, 1)
    scattered = joined_seconds(machine, REDUCE_SCATTER, size, tp, 1)
    return gathered + scattered, 2 * gathered + scattered + rows


def sent_seconds(run: Run, machine: Machine) -> Seconds:
    """Seconds to send the activations of a micro-batch to the next stage, over the slowest hop."""
    mesh = run.mesh
    size = sized(local_tokens(run) * run.arch.hidden, 16 if run.precision != "fp32" else 32)
    return joined_seconds(machine, SEND, size, mesh.pp, mesh.tp * mesh.cp * mesh.dp)
