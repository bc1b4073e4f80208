"""Parameters of one layer on one rank of a server: mixers, feed-forwards and experts."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.num import ceil_div
from ...ledger.rules import Dim
from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Mixer, Mlp, Moe, StateSpace, Weight
from .server_shard import (
    ATTENTION,
    EXPERT,
    EXPERTS,
    FEED_FORWARD,
    LINEAR,
    NORM,
    NORMS,
    OTHER,
    ROUTER,
    STATE,
    ServerShard,
    ShardedParameter,
)


def _full_shape(weight: Weight) -> tuple[int, ...]:
    return tuple(int(size) for _, size in weight.dims)


def norm_parameter(weight: Weight) -> ShardedParameter:
    """A norm's weight, which is replicated on every rank."""
    return ShardedParameter(weight.name, _full_shape(weight), NORM, part=NORMS)


def layer_parameters(layer: Layer, shard: ServerShard) -> Iterator[ShardedParameter]:
    """Every parameter of one layer on the rank, with names relative to the layer."""
    mixers = ((layer.mixer_name, layer.mixer), *layer.beside)
    for name, mixer in mixers:
        if mixer is not None:
            yield from _with_prefix(name, _mixer_parameters(mixer, shard))
    if isinstance(layer.mlp, Moe):
        yield from _with_prefix(layer.mlp_name, _moe_parameters(layer.mlp, shard))
    elif layer.mlp is not None:
        yield from _with_prefix(
            layer.mlp_name, _mlp_parameters(layer.mlp, shard, shard.tp, FEED_FORWARD)
        )
    for _, norm in layer.norms:
        yield from (norm_parameter(weight) for weight in norm.weights())
    for weight in layer.extra:
        yield _parameter(weight, shard_shape(weight.dims, shard), ATTENTION)


def _with_prefix(name: str, parameters: Iterator[ShardedParameter]) -> Iterator[ShardedParameter]:
    prefix = f"{name}." if name else ""
    return (
        ShardedParameter(
            prefix + parameter.name,
            parameter.shape,
            parameter.role,
            parameter.layer,
            parameter.part,
            parameter.ins,
            joint=prefix + parameter.joint if parameter.joint else "",
        )
        for parameter in parameters
    )


def _parameter(
    weight: Weight, shape: tuple[int, ...], part: str, *, transposed: bool = False, joint: str = ""
) -> ShardedParameter:
    """A parameter with its role: a matrix that is multiplied, or one that is never quantized."""
    dims = dict(weight.dims)
    matrix = len(shape) == 2 and weight.name.endswith("weight") and "position" not in dims
    role = NORM if len(shape) == 1 else LINEAR if matrix else OTHER
    if joint:
        joint = f"{joint}.{weight.name.rpartition('.')[2]}"
    return ShardedParameter(
        weight.name, shape, role, part=part, ins=0 if transposed else -1, joint=joint
    )


def _mixer_parameters(mixer: Mixer, shard: ServerShard) -> Iterator[ShardedParameter]:
    if isinstance(mixer, StateSpace):
        yield from _state_space_parameters(mixer, shard)
        return
    part = ATTENTION if isinstance(mixer, Attention | LatentAttention) else STATE
    transposed, fused_prefix, replicated, inputs = set(), "", set(), set()
    if isinstance(mixer, Attention):
        inputs = {weight.name for linear in mixer.inputs for weight in linear.weights()}
        linears = (*mixer.inputs, mixer.output)
        transposed = {f"{linear.name}.weight" for linear in linears if linear.transposed}
        fused_prefix = f"{mixer.inputs[0].name}." if _is_fused(mixer) else ""
        # norms over all heads of q and k are replicated (OLMo 2); those with a row for each head
        # are sharded (Cohere)
        norms = (weight for norm in mixer.norms for weight in norm.weights())
        replicated = {weight.name for weight in norms if len(weight.dims) == 1}
    for weight in mixer.weights():
        if weight.name in replicated:
            shape = _full_shape(weight)
        elif fused_prefix and weight.name.startswith(fused_prefix) and isinstance(mixer, Attention):
            shape = _fused_qkv_shape(weight, mixer, shard)
        else:
            shape = _attention_shape(weight, mixer, shard)
        joint = "qkv" if weight.name in inputs else ""
        yield _parameter(weight, shape, part, transposed=weight.name in transposed, joint=joint)


def _is_fused(mixer: Attention) -> bool:
    """Whether one projection makes q, k and v; one for q alone is narrower."""
    both = mixer.head_dim + (mixer.value_dim or mixer.head_dim)
    width = mixer.heads * mixer.head_dim + mixer.kv_heads * both
    return len(mixer.inputs) == 1 and mixer.inputs[0].outs[1] == width


def _attention_shape(weight: Weight, mixer: Mixer, shard: ServerShard) -> tuple[int, ...]:
    """A weight's shape on the rank; key-value heads are replicated if there are more ranks."""
    if not isinstance(mixer, Attention):
        return shard_shape(weight.dims, shard)
    return tuple(
        shard.kv_heads(mixer.kv_heads) * (int(size) // mixer.kv_heads)
        if dim == "kv_heads"
        else _shard_size(dim, int(size), shard)
        for dim, size in weight.dims
    )


def _fused_qkv_shape(weight: Weight, mixer: Attention, shard: ServerShard) -> tuple[int, ...]:
    """The shape on the rank of one projection for q, k and v."""
    both = mixer.head_dim + (mixer.value_dim or mixer.head_dim)
    rows = int(ceil_div(mixer.heads, shard.attention_tp)) * mixer.head_dim
    rows += shard.kv_heads(mixer.kv_heads) * both
    return tuple(rows if dim == "heads" else int(size) for dim, size in weight.dims)


def _state_space_parameters(mixer: StateSpace, shard: ServerShard) -> Iterator[ShardedParameter]:
    """Parameters of a Mamba mixer.

    Mamba-2 has one projection for z, x, B, C and dt. B and C are split by groups, which are
    replicated if there are more ranks than groups.
    """
    inner, groups = mixer.inner // shard.attention_tp, shard.groups(mixer.groups)
    channels = inner + 2 * groups * mixer.state
    widths = {"conv1d": channels, "in_proj": inner + channels + mixer.heads // shard.attention_tp}
    for weight in mixer.parameters:
        module = weight.name.partition(".")[0]
        shape = shard_shape(weight.dims, shard)
        if mixer.version == 2 and module in widths:
            shape = (widths[module], *shape[1:])
        matrix = module in ("in_proj", "x_proj", "out_proj") and len(shape) == 2
        role = LINEAR if matrix else NORM if len(shape) == 1 else OTHER
        yield ShardedParameter(weight.name, shape, role, part=STATE)


def _mlp_parameters(
    mlp: Mlp, shard: ServerShard, ranks: int, part: str
) -> Iterator[ShardedParameter]:
    for linear in (*mlp.inputs, mlp.output):
        for weight in linear.weights():
            parts = ((ranks if dim == "ffn" else 1, size) for dim, size in weight.dims)
            shape = tuple(int(ceil_div(size, count)) for count, size in parts)
            joint = "gate_up" if linear is not mlp.output else ""
            if joint and "." in linear.name:
                joint = f"{linear.name.rpartition('.')[0]}.{joint}"
            yield _parameter(weight, shape, part, transposed=linear.transposed, joint=joint)


def _moe_parameters(moe: Moe, shard: ServerShard) -> Iterator[ShardedParameter]:
    """Routers are replicated; experts are distributed over `ep` and sharded over `expert_tp`."""
    for weight in moe.router:
        yield ShardedParameter(weight.name, _full_shape(weight), ROUTER, part=EXPERTS)
    for weight in moe.experts:
        inner = "expert_ffn" if "down" in weight.name else "embed"
        names = [dim for dim, _ in weight.dims]
        ins = names.index(inner) if inner in names else -1
        role = EXPERT if len(names) > 2 else OTHER  # otherwise a bias of each expert
        shape = shard_shape(weight.dims, shard)
        yield ShardedParameter(weight.name, shape, role, part=EXPERTS, ins=ins)
    if moe.shared is not None:
        yield from _mlp_parameters(moe.shared, shard, shard.shared_tp or shard.tp, FEED_FORWARD)
    if moe.shared_gate is not None:
        for weight in moe.shared_gate.weights():
            yield ShardedParameter(weight.name, _full_shape(weight), ROUTER, part=FEED_FORWARD)


def shard_shape(dims: tuple[Dim, ...], shard: ServerShard, vocab_tp: int = 0) -> tuple[int, ...]:
    """A tensor's shape on the rank; `vocab_tp`: ranks that share the vocabulary, 0 means `tp`."""
    return tuple(_shard_size(dim, int(size), shard, vocab_tp) for dim, size in dims)


def _shard_size(dim: str, size: int, shard: ServerShard, vocab_tp: int = 0) -> int:
    if dim == "vocab":
        return shard.vocab(size, vocab_tp)
    ranks = dict.fromkeys(("heads", "kv_heads", "state"), shard.attention_tp)
    ranks |= {"ffn": shard.tp, "expert": shard.ep, "expert_ffn": shard.expert_tp}
    return int(ceil_div(size, ranks.get(dim, 1)))
