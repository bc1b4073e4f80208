"""Seconds of the kernels of a layer and of the ends of a model: forward, backward, recompute.

What backward runs again: nothing, some modules, some operations, or all of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from ...ledger.num import Num, holds, larger, sized, smaller
from ...models.arch.arch import Layer
from ...models.arch.blocks import Linear, Moe, Norm
from ...run.engine_row import MEGATRON_CORE, TRANSFORMERS
from ...run.recompute import ATTENTION as KEEPS_ATTENTION
from ...run.recompute import BY_OPERATION, EVERY_SECOND_MM, FULL, NONE
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.megatron_lm.options import expert_tp
from ...training.losses import LOSSES
from ..curves.machine import Machine
from .clock import BlockClock
from .operators import (
    ATTENTION,
    CORE,
    EXPERTS,
    MLP,
    AttentionCall,
    EqualLayers,
    Matmul,
    attention_calls,
    head_matmul,
    layer_matmuls,
    local_tokens,
    score_matmuls,
    stores_scores,
    tokens_of,
)
from .step_seconds import Seconds
from .tapes import head_ops, is_plain_torch, layer_ops, precision_of
from .traffic import SCORES, MemoryKernel, Traffic, elementwise_seconds, traffic

# Parts of recompute_modules: which matmuls run again, and which other kernels by their names.
MODULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "core_attn": ((CORE,), ("attn.",)),
    "layernorm": ((), ("norm",)),
    "mlp": ((MLP,), ("activation", "gate", "act", "mlp.")),
    "moe": ((MLP, EXPERTS), ("experts.", "moe.", "router.", "activation")),
    "moe_act": ((), ("experts.activation",)),
    "mla_up_proj": ((), ("mla.",)),
    "shared_experts": ((MLP,), ("activation",)),
    "attention": ((ATTENTION, CORE), ("attn.", "rotary")),
}

Recompute = Callable[..., Seconds]


def recomputed(run: Run, engine: str) -> Recompute:
    """A function that adds up what a layer runs again in backward, under its policy."""
    if run.recompute == NONE:
        return lambda clock, matmuls, calls, kernels: 0.0
    if run.recompute == BY_OPERATION:
        return lambda *block: _by_operation(run, *block)
    if run.recompute == FULL:
        stops = not engine_row(engine).megatron and run.rule.early_stop and not run.reentrant
        return lambda *block: _everything(stops, *block)
    modules = run.rule.modules or ("core_attn",)
    return lambda *block: _modules(modules, *block)


def _everything(
    stops: bool, clock: BlockClock, matmuls: Any, calls: Any, kernels: tuple[MemoryKernel, ...]
) -> Seconds:
    """All of forward; with early stop without the last matmul, whose result nothing needs."""
    left = [one for one in matmuls if not (stops and one.last)]
    others = kernels[:-1] if stops else kernels
    return clock.forward(left) + clock.attention(calls, backward=False) + clock.others(others)


def _by_operation(
    run: Run, clock: BlockClock, matmuls: Any, calls: Any, kernels: tuple[MemoryKernel, ...]
) -> Seconds:
    """All kernels but those whose results are kept: attention, or every second matmul."""
    again = clock.forward(matmuls)
    if EVERY_SECOND_MM in run.rule.keeps:
        again = again * 0.5
    kept = KEEPS_ATTENTION in run.rule.keeps
    attention = 0.0 if kept else clock.attention(calls, backward=False)
    return again + attention + clock.others(kernels)


def _modules(
    modules: tuple[str, ...],
    clock: BlockClock,
    matmuls: Any,
    calls: Any,
    kernels: tuple[MemoryKernel, ...],
) -> Seconds:
    """The matmuls and kernels of some modules."""
    parts = {part for name in modules for part in MODULES[name][0]}
    words = tuple(word for name in modules for word in MODULES[name][1])
    chosen = [k for k in kernels if any(word in k.name for word in words)]
    again = clock.forward([one for one in matmuls if one.part in parts]) + clock.others(chosen)
    return again + clock.attention(calls if CORE in parts else (), backward=False)


RING_LAUNCHES = 4  # of a step of the ring: send, attention, and two kernels of `ring_kernels`
DEQUANTIZED = {"nf4": 4, "int8": 8}  # bits of a quantized weight


class BlockSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of a block for one micro-batch.

    - forward, recompute: of one pass each; backward: without recompute
    - weights: the part of backward that computes weight gradients, under which Megatron reduces
      the input's gradient
    - core, core_backward: the parts that are attention, under which keys and values travel
    - launches, back_launches: kernels of forward and of backward
    """

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    recompute: Seconds = 0.0
    weights: Seconds = 0.0
    core: Seconds = 0.0
    core_backward: Seconds = 0.0
    launches: Any = 0
    back_launches: Any = 0

    @property
    def total(self) -> Seconds:
        """Seconds of all passes."""
        return self.forward + self.backward + self.recompute


def layer_seconds(run: Run, engine: str, machine: Machine, kind: EqualLayers) -> BlockSeconds:
    """Seconds of one layer for one micro-batch; `recompute`: where the layer recomputes."""
    clock = BlockClock(run, engine, machine)
    scores = stores_scores(run, engine) or runs_scores(run, engine, kind)
    matmuls = tuple(layer_matmuls(run, engine, kind.layer))
    calls: tuple[AttentionCall, ...] = ()
    if scores:
        matmuls = (*matmuls, *score_matmuls(run, kind))
    else:
        calls = tuple(attention_calls(run, kind))
    work = layer_traffic(run, engine, kind)
    unpacking = clock.others(_unpacked(run, kind.layer))
    core = clock.attention(calls, backward=False)
    core_backward = clock.attention(calls, backward=True)
    # Of a ring of context parallelism, after a rank's own keys and values.
    steps = run.mesh.cp - 1 if calls and engine_row(engine).megatron else 0
    joined = tuple(clock.others(kernels) * steps for kernels in ring_kernels(run, kind))
    forward = clock.forward(matmuls) + core + unpacking + clock.others(work.forward) + joined[0]
    weights = clock.weights(matmuls)
    backward = clock.inputs(matmuls) + core_backward + unpacking
    backward = backward + weights + clock.others(work.backward) + joined[1]
    again = recomputed(run, engine)
    return BlockSeconds(
        forward=forward,
        backward=backward,
        weights=weights,
        core=core,
        core_backward=core_backward,
        recompute=again(clock, matmuls, calls, work.forward)
        + (unpacking + joined[0]) * _whole(run),
        launches=work.launches + RING_LAUNCHES * steps,
        back_launches=work.back_launches + RING_LAUNCHES * steps,
    )


def ring_kernels(
    run: Run, kind: EqualLayers
) -> tuple[tuple[MemoryKernel, ...], tuple[MemoryKernel, ...]]:
    """What one step of the ring runs besides attention, in forward and in backward.

    Forward corrects the sums of the softmax, and adds the step's 16-bit result to the fp32 one;
    backward adds its gradients of queries, and of keys and values (Transformer Engine 2.18
    attention/context_parallel.py, AttnFuncWithCPAndKVP2P).
    """
    forward, backward = [], []
    for call in attention_calls(run, kind):
        rows = tokens_of(run) * call.heads
        elements = rows * call.head_dim
        keys = 2 * tokens_of(run) * call.kv_heads * call.head_dim
        forward += [MemoryKernel("ring.sums", 12 * rows), MemoryKernel("ring.out", 10 * elements)]
        backward += [MemoryKernel("ring.dq", 6 * elements), MemoryKernel("ring.dkv", 6 * keys)]
    return tuple(forward), tuple(backward)


def _whole(run: Run) -> int:
    return int(run.recompute in (FULL, BY_OPERATION))


def _unpacked(run: Run, layer: Layer) -> Iterator[MemoryKernel]:
    """Frozen weights that are unpacked to 16 bits before each matmul."""
    if run.quantization is None:
        return
    bits = DEQUANTIZED[run.quantization] + 16
    for linear in layer.linears:
        yield MemoryKernel(f"{linear.name}.unpacked", sized(linear.numel, bits))


def recomputed_share(run: Run) -> Seconds:
    """The share of layers to which recompute applies."""
    if run.recompute != FULL:
        return 1.0
    layers = len(run.arch.layers)
    if run.rule.first_layers is not None:
        parts = layers + sum(run.ends_counted)
        chunk: Any = larger(parts // (run.mesh.pp * run.virtual_stages), 1)
        return smaller(run.rule.first_layers, chunk) / chunk
    chosen = layers * run.recompute_quarters // 4
    return len(range(run.rule.first, chosen, run.rule.every)) / layers


def runs_scores(run: Run, engine: str, kind: EqualLayers) -> bool:
    """Whether torch has no fused attention for a layer: its operations are in the tape."""
    ops = layer_ops(run, engine, kind.layer, masked=kind.window is not None)
    return any(op.name in SCORES for op in ops)


def layer_traffic(run: Run, engine: str, kind: EqualLayers) -> Traffic:
    """The kernels of one layer besides matmuls and attention."""
    ops = layer_ops(run, engine, kind.layer, masked=kind.window is not None)
    names = frozenset(linear.name for linear in kind.layer.linears)
    norms = frozenset(norm.name for norm in _norms(kind.layer))
    absent = _unsorted(run, engine, kind.layer)
    return traffic(ops, norms, names, absent, torch_kernels=has_torch_kernels(run, engine))


def has_torch_kernels(run: Run, engine: str) -> bool:
    """Whether each operation is a kernel of torch: in transformers' code, and in Megatron's local
    layers.
    """
    if run.compile or run.liger:
        return False
    layers = engine_row(engine).layers
    return layers == TRANSFORMERS or (layers == MEGATRON_CORE and is_plain_torch(run))


def _unsorted(run: Run, engine: str, layer: Layer) -> dict[str, Num]:
    """1 where a rank of Megatron does not sort the tokens that it receives: all are for its only
    expert, and no other rank shares it (pytorch/modelling/megatron/layer.py).
    """
    if not engine_row(engine).megatron or not isinstance(layer.mlp, Moe):
        return {}
    single = holds(layer.mlp.num_experts // run.mesh.ep == 1)
    return {"moe.sorted": single * holds(expert_tp(run) == 1), "moe.unsorted": single}


def _norms(part: object) -> Iterator[Norm]:
    """Every norm of a layer."""
    if isinstance(part, Norm):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _norms(item)
    elif isinstance(part, Struct) and not isinstance(part, Linear):
        for name in part.__struct_fields__:
            yield from _norms(getattr(part, name))


def head_seconds(run: Run, engine: str, machine: Machine) -> BlockSeconds:
    """Seconds of final norm, output layer and loss for one micro-batch."""
    clock = BlockClock(run, engine, machine)
    matmul = head_matmul(run, engine)
    if engine_row(engine).megatron:
        forward, backward = _megatron_loss(run, matmul)
        work = Traffic((MemoryKernel("loss", forward),), (MemoryKernel("loss", backward),), 12, 8)
    else:
        work = _transformers_loss(run, engine)
    weights = clock.weights([matmul])
    again = (LOSSES[run.loss].logit_passes - 1) * clock.forward([matmul])
    return BlockSeconds(
        forward=clock.forward([matmul]) + clock.others(work.forward),
        backward=clock.inputs([matmul]) + weights + again + clock.others(work.backward),
        weights=weights,
        launches=work.launches,
        back_launches=work.back_launches,
    )


def _megatron_loss(run: Run, matmul: Matmul) -> tuple[Num, Num]:
    """Bytes of Megatron's loss: of every logit of this rank."""
    of_each = LOSSES[run.loss].logit_bytes
    assert of_each is not None, f"loss {run.loss!r} has no logit_bytes"
    forward, backward = of_each
    logits = matmul.m * matmul.n
    return logits * forward, logits * backward


def _transformers_loss(run: Run, engine: str) -> Traffic:
    norm = run.arch.final_norm
    norms = frozenset() if norm is None else frozenset({norm.name})
    own = has_torch_kernels(run, engine)
    return traffic(head_ops(run, engine), norms, frozenset({"lm_head"}), torch_kernels=own)


def both_ends(embedding: BlockSeconds, head: BlockSeconds) -> BlockSeconds:
    """The kernels of both ends of the model."""
    return BlockSeconds(
        launches=embedding.launches + head.launches,
        back_launches=embedding.back_launches + head.back_launches,
    )


def embedding_seconds(run: Run, engine: str, machine: Machine) -> BlockSeconds:
    """Seconds of the embedding: rows that are looked up, and their gradients that are added."""
    bits = precision_of(run, engine).compute
    rows = sized(local_tokens(run) * run.arch.hidden, bits)
    table = 0 if run.frozen else 4 * sized(tokens_of(run) * run.arch.hidden, bits)
    forward = elementwise_seconds(machine, [MemoryKernel("embedding", 2 * rows)])
    backward = elementwise_seconds(machine, [MemoryKernel("embedding", table)])
    return BlockSeconds(forward=forward, backward=backward, launches=2, back_launches=2)
