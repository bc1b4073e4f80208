"""Every parameter that one rank of a server stores: `held`, of the rank's `ServerShard`.

Attention heads and feed-forwards are sharded, norms and routers replicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...ledger.remember import remembered
from ...ledger.rules import Dim
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention, Mixer, Mlp, Moe, StateSpace, Weight

# Roles of a parameter: only linear, expert and (where a format says so) head are quantized.
LINEAR, EXPERT, ROUTER, EMBEDDING = "linear", "expert", "router", "embedding"
HEAD, NORM, OTHER = "head", "norm", "other"
# Parts of a model, as reports name them.
ATTENTION, STATE, FEED_FORWARD = "attention", "state space", "feed-forward"
EXPERTS, NORMS, TOWER = "experts", "norms", "vision tower"


class ServerShard(Struct, frozen=True, kw_only=True):
    """One rank's part of a model: its layers, and how many ranks share each dimension.

    - `places`: indices of its layers; `embedding`, `head`: whether it has them
    - `tp`: ranks that share a feed-forward; `attention_tp`: attention heads (fewer with
      data-parallel attention)
    - `ep`: ranks that share the experts, each with whole experts; `expert_tp`: ranks that share
      one expert
    - `vocab_multiple`: the vocabulary is padded to a multiple of it before it is split
    - `embedding_tp`, `head_tp`, `shared_tp`, `tower_tp`: ranks that share the embedding, the head,
      shared experts and the vision tower; 0 means `tp`
    """

    places: range
    embedding: bool = True
    head: bool = True
    tp: int = 1
    attention_tp: int = 1
    ep: int = 1
    expert_tp: int = 1
    vocab_multiple: int = 1
    embedding_tp: int = 0
    head_tp: int = 0
    shared_tp: int = 0
    tower_tp: int = 0

    def layers(self, arch: Arch) -> Iterator[Layer]:
        """The rank's layers, in order."""
        return (arch.layers[place] for place in self.places)

    def kv_heads(self, heads: int) -> int:
        """Key-value heads on the rank; heads are replicated if there are more ranks than heads."""
        return max(1, heads // self.attention_tp)

    def groups(self, groups: int) -> int:
        """Groups of B and C of a Mamba-2 mixer on the rank; replicated if there are more ranks."""
        return max(1, groups // self.attention_tp)

    def vocab(self, size: int, ranks: int = 0) -> int:
        """Rows of the vocabulary on the rank; `ranks`: that share it, 0 means `tp`."""
        padded = ceil_div(size, self.vocab_multiple) * self.vocab_multiple
        return int(ceil_div(padded, ranks or self.tp))


class ShardedParameter(Struct, frozen=True):
    """A parameter as a rank stores it.

    - `name`: its name in the model; `shape`: its shape on the rank
    - `role`: linear, expert, router, embedding, head, norm or other
    - `layer`: index of its layer, -1 outside the layers; `part`: part of the model
    - `ins`: the dimension of a matrix that is multiplied with the input
    - `bits`: bits of an element, 0: the model's
    - `joint`: the tensor into which servers concatenate it (q, k and v; gate and up)
    """

    name: str
    shape: tuple[int, ...]
    role: str
    layer: int = -1
    part: str = ""
    ins: int = -1
    bits: int = 0
    joint: str = ""

    @property
    def numel(self) -> int:
        """Number of elements on the rank."""
        return prod(self.shape)

    @property
    def matrix(self) -> tuple[int, int, int]:
        """Number of matrices, and the outputs and inputs of each."""
        copies = self.shape[0] if len(self.shape) == 3 else 1
        ins = self.shape[self.ins]
        return copies, self.numel // (copies * ins), ins


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
    for one in parameters:
        joint = prefix + one.joint if one.joint else ""
        yield replace(one, name=prefix + one.name, joint=joint)


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


def stage_shard(counts: Sequence[int], stage: int, **sizes: int) -> ServerShard:
    """The part of pipeline stage `stage`, where the stages have `counts` layers; `sizes`: the other
    fields.
    """
    start, last = sum(counts[:stage]), len(counts) - 1
    places = range(start, start + counts[stage])
    return ServerShard(places=places, embedding=stage == 0, head=stage == last, **sizes)


@remembered(64, always=True)
def held(arch: Arch, shard: ServerShard) -> tuple[ShardedParameter, ...]:
    """Every parameter on the rank, in the model's order; a vision tower is with the embedding.

    The tower's heads and feed-forwards are sharded like the model's (vLLM 0.11.0 siglip.py,
    pixtral.py).
    """
    return tuple(_parameters(arch, shard))


def _parameters(arch: Arch, shard: ServerShard) -> Iterator[ShardedParameter]:
    if shard.embedding:
        tower = replace(shard, tp=1, attention_tp=1) if shard.tower_tp == 1 else shard
        for weight in arch.tower:
            shape = shard_shape(weight.dims, tower)
            yield ShardedParameter(weight.name, shape, OTHER, part=TOWER)
        for weight in arch.embedding:
            role = EMBEDDING if "vocab" in dict(weight.dims) else OTHER
            shape = shard_shape(weight.dims, shard, shard.embedding_tp)
            yield ShardedParameter(weight.name, shape, role, part=EMBEDDING)
        if arch.embedding_norm is not None:
            yield from (norm_parameter(weight) for weight in arch.embedding_norm.weights())
    by_layer: dict[int, tuple[ShardedParameter, ...]] = {}
    router_biases = {one.name: one for one in arch.buffers if one.name.endswith("_bias")}
    for place in shard.places:
        name = arch.layer_names[place] if arch.layer_names else f"{arch.layer_prefix}.{place}"
        layer = arch.layers[place]
        if id(layer) not in by_layer:
            by_layer[id(layer)] = tuple(layer_parameters(layer, shard))
        for parameter in by_layer[id(layer)]:
            yield replace(parameter, name=f"{name}.{parameter.name}", layer=place)
        for owner in ("gate.", ""):  # MiniMax-M2 has it next to its gate
            bias = router_biases.get(f"{name}.{layer.mlp_name}.{owner}e_score_correction_bias")
            if bias is not None:
                fields = (bias.name, bias.shape, ROUTER, place, EXPERTS)
                yield ShardedParameter(*fields, bits=bias.bits)
    if shard.head:
        yield from _head_parameters(arch, shard)


def _head_parameters(arch: Arch, shard: ServerShard) -> Iterator[ShardedParameter]:
    """The final norm and the head; a tied head is a copy if another rank has the embedding."""
    if arch.final_norm is not None:
        yield from (norm_parameter(weight) for weight in arch.final_norm.weights())
    if arch.head is not None:
        for weight in arch.head.weights():
            yield ShardedParameter(
                weight.name, shard_shape(weight.dims, shard, shard.head_tp), HEAD, part=HEAD
            )
    elif not shard.embedding:
        rows = shard.vocab(arch.vocab, shard.head_tp)
        yield ShardedParameter("lm_head.weight", (rows, arch.hidden), HEAD, part=HEAD)
    for weight in arch.head_extra:
        shape = shard_shape(weight.dims, shard, shard.head_tp)
        yield ShardedParameter(weight.name, shape, OTHER if len(shape) > 1 else NORM, part=HEAD)
