"""Seconds that the host needs to launch a step's kernels."""

from __future__ import annotations

from msgspec import Struct

from ...models.arch.arch import Layer
from ...models.arch.blocks import Moe
from ...run.engine_row import MEGATRON_2, MEGATRON_CORE, SHARD_UNITS, TRANSFORMERS
from ...run.recompute import FULL
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.deepspeed import options as deepspeed
from ..curves import host
from ..curves.host import COMPILED, EAGER, HostCosts
from .compute import BlockSeconds, recomputed_share
from .estimates import LOCAL_EXPERT, LOCAL_LAYER, MEGATRON_DEEPSPEED_OPERATION
from .operators import layer_kinds
from .step_seconds import Seconds
from .tapes import is_plain_torch

FUSED_SECONDS = 8.0e-6  # of one kernel of Transformer Engine's layers


class HostSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of the host.

    - forwards, backwards: of one layer of each kind, for one micro-batch; backward has recompute
    - ends: of embedding and head, both passes
    - step: once a step, besides the optimizer's kernels
    """

    forwards: tuple[Seconds, ...]
    backwards: tuple[Seconds, ...]
    ends: Seconds
    step: Seconds = 0.0


def host_costs(run: Run, engine: str) -> HostCosts:
    """The host's seconds for an operation under an engine."""
    layers = engine_row(engine).layers
    if layers == TRANSFORMERS or (layers == MEGATRON_CORE and is_plain_torch(run)):
        return COMPILED if run.compile else EAGER
    each = MEGATRON_DEEPSPEED_OPERATION if layers == MEGATRON_2 else FUSED_SECONDS
    return HostCosts(layer=0.0, operation=each, back_operation=each, ends=0.0, step=0.0)


def host_seconds(
    run: Run, engine: str, layers: tuple[BlockSeconds, ...], ends: BlockSeconds
) -> HostSeconds:
    """The host's seconds; `layers`, `ends`: how many kernels they launch."""
    costs = host_costs(run, engine)
    again = recomputed_share(run) * (run.recompute == FULL)
    back = costs.frozen_operation if run.frozen else costs.back_operation
    kinds = [kind.layer for kind in layer_kinds(run.arch)]
    forwards, backwards = [], []
    for block, layer in zip(layers, kinds, strict=True):
        forward = block.launches * costs.operation + costs.layer
        hooks, more = _hooks(run, engine, layer, again), _quantized(run, layer, again)
        saved = host.CHECKPOINT * again * (costs.layer > 0)
        forwards.append(forward + hooks[0] + more[0])
        backward = forward * again + block.back_launches * back + saved
        backwards.append(backward + hooks[1] + more[1])
    both = ends.launches * costs.operation + ends.back_launches * back + costs.ends
    return HostSeconds(
        forwards=tuple(forwards),
        backwards=tuple(backwards),
        ends=both + _end_hooks(engine),
        step=costs.step,
    )


def num_tensors(layer: Layer) -> int:
    """Parameters of a layer."""
    return sum(1 for _ in layer.weights())


def _hooks(run: Run, engine: str, layer: Layer, again: Seconds) -> tuple[Seconds, Seconds]:
    """What FSDP and ZeRO do around a layer and its parameters, in forward and in backward."""
    row = engine_row(engine)
    if row.ranks == SHARD_UNITS:
        return host.FSDP_UNIT, host.FSDP_BACK_UNIT
    if row.layers == MEGATRON_CORE and is_plain_torch(run):
        return _megatron_hooks(run, layer)
    if not row.zero_hooks:
        return 0.0, 0.0
    stage, tensors = int(deepspeed.number(run, "zero_stage")), num_tensors(layer)
    backward: Seconds = host.ZERO_GRADIENT[stage] * tensors * (not run.frozen)
    if stage < 3:
        return 0.0, backward
    ranks: Seconds = run.mesh.dp
    gather = host.ZERO3_RANK * tensors * ranks
    each = host.ZERO3_PARAMETER * tensors
    return each + gather, backward + each * (2 + again) + gather * (1 + again)


def _megatron_hooks(run: Run, layer: Layer) -> tuple[Seconds, Seconds]:
    """What Megatron's local layers do besides their operations; experts run one after another."""
    experts: Seconds = 0
    if isinstance(layer.mlp, Moe):
        experts = layer.mlp.num_experts // run.mesh.ep
    forward, backward = LOCAL_LAYER
    return forward + LOCAL_EXPERT[0] * experts, backward + LOCAL_EXPERT[1] * experts


def _end_hooks(engine: str) -> Seconds:
    row = engine_row(engine)
    if row.ranks == SHARD_UNITS:
        return host.FSDP_UNIT + host.FSDP_BACK_UNIT
    return host.ZERO_ENDS if row.zero_hooks else 0.0


def _quantized(run: Run, layer: Layer, again: Seconds) -> tuple[Seconds, Seconds]:
    """Quantized layers of bitsandbytes, in forward and in backward."""
    if run.quantization not in host.QUANTIZED:
        return 0.0, 0.0
    forward, backward = host.QUANTIZED[run.quantization]
    count = sum(1 for _ in layer.linears)
    return forward * count, (forward * again + backward) * count
