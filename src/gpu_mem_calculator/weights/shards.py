"""The part of a model that one rank of a server has.

Legend: t ranks that cut a tensor. Heads and feed-forwards are cut, norms and routers repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..ledger.num import ceil_div
from ..ledger.remember import remembered
from ..ledger.rules import Dim
from ..model.arch import Arch, Layer
from ..model.blocks import Attention, LatentAttention, Mixer, Mlp, Moe, StateSpace, Weight

# What a parameter is: only the first two are ever quantized.
LINEAR, EXPERT, ROUTER, EMBEDDING, HEAD, NORM, OTHER = (
    "linear", "expert", "router", "embedding", "head", "norm", "other")  # fmt: skip
# Where it stands, for people.
ATTENTION, STATE, FEED_FORWARD, EXPERTS, NORMS, TOWER = (
    "attention", "state space", "feed-forward", "experts", "norms", "vision tower")  # fmt: skip


class ServerShard(Struct, frozen=True, kw_only=True):
    """One rank's part: its layers, and along what they are cut.

    Attention may be cut over fewer ranks than feed-forwards (data-parallel attention), and so may
    the embedding, the head and shared experts: 0 means `tp`. Experts are spread whole over `ep`
    ranks and each cut over `expert_tp`. A vocabulary is padded to a multiple of `vocab_multiple`
    before it is cut.
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

    def layers(self, arch: Arch) -> Iterator[Layer]:
        """Its layers."""
        return (arch.layers[place] for place in self.places)

    def kv_heads(self, heads: int) -> int:
        """Key-value heads on the rank: a head that is not cut is repeated."""
        return max(1, heads // self.attention_tp)

    def groups(self, groups: int) -> int:
        """Groups of B and C of a Mamba-2 mixer on the rank: repeated where they are too few."""
        return max(1, groups // self.attention_tp)

    def vocab(self, size: int, ranks: int = 0) -> int:
        """Rows of the vocabulary on the rank."""
        padded = ceil_div(size, self.vocab_multiple) * self.vocab_multiple
        return int(ceil_div(padded, ranks or self.tp))


class ShardedParameter(Struct, frozen=True):
    """A parameter as a rank holds it: its name in the model, its cut shape, and what it is.

    `part` is where it stands, `ins` which dimension of a matrix is multiplied with the input,
    `bits` its width where that is not the model's, `joint` the tensor that engines make of it and
    its neighbours (q, k and v; gate and up).
    """

    name: str
    shape: tuple[int, ...]
    role: str  # linear, expert, router, embedding, head, norm, other
    layer: int = -1
    part: str = ""
    ins: int = -1
    bits: int = 0
    joint: str = ""

    @property
    def numel(self) -> int:
        """Elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def matrix(self) -> tuple[int, int, int]:
        """How many matrices it is, and the outputs and inputs of each."""
        copies = self.shape[0] if len(self.shape) == 3 else 1
        ins = self.shape[self.ins]
        return copies, self.numel // (copies * ins), ins


@remembered(64, always=True)
def held(arch: Arch, shard: ServerShard) -> tuple[ShardedParameter, ...]:
    """Every parameter on the rank, in the model's order; pictures' tower goes with the embedding.

    Its heads and feed-forwards are cut like the model's own (vLLM 0.11.0 siglip.py, pixtral.py).
    """
    return tuple(_every(arch, shard))


def _every(arch: Arch, shard: ServerShard) -> Iterator[ShardedParameter]:
    if shard.embedding:
        yield from (
            ShardedParameter(w.name, _shape(w.dims, shard), OTHER, part=TOWER) for w in arch.tower
        )
        for weight in arch.embedding:
            role = EMBEDDING if "vocab" in dict(weight.dims) else OTHER
            yield ShardedParameter(
                weight.name, _shape(weight.dims, shard, shard.embedding_tp), role, part=EMBEDDING
            )
        if arch.embedding_norm is not None:
            yield from (_norm(weight) for weight in arch.embedding_norm.weights())
    found: dict[int, tuple[ShardedParameter, ...]] = {}
    steering = {buffer.name: buffer for buffer in arch.buffers if buffer.name.endswith("_bias")}
    for place in shard.places:
        name = arch.layer_names[place] if arch.layer_names else f"{arch.layer_prefix}.{place}"
        layer = arch.layers[place]
        if id(layer) not in found:
            found[id(layer)] = tuple(_layer(layer, shard))
        for one in found[id(layer)]:
            yield ShardedParameter(
                f"{name}.{one.name}", one.shape, one.role, place, one.part, one.ins, joint=one.joint
            )
        for owner in ("gate.", ""):  # MiniMax-M2 keeps it beside its gate
            bias = steering.get(f"{name}.{layer.mlp_name}.{owner}e_score_correction_bias")
            if bias is not None:
                yield ShardedParameter(
                    bias.name, bias.shape, ROUTER, place, EXPERTS, bits=bias.bits
                )
    if shard.head:
        yield from _behind(arch, shard)


def _behind(arch: Arch, shard: ServerShard) -> Iterator[ShardedParameter]:
    """The final norm and the head; a tied head is a copy where another rank has the embedding."""
    if arch.final_norm is not None:
        yield from (_norm(weight) for weight in arch.final_norm.weights())
    if arch.head is not None:
        for weight in arch.head.weights():
            yield ShardedParameter(
                weight.name, _shape(weight.dims, shard, shard.head_tp), HEAD, part=HEAD
            )
    elif not shard.embedding:
        rows = shard.vocab(arch.vocab, shard.head_tp)
        yield ShardedParameter("lm_head.weight", (rows, arch.hidden), HEAD, part=HEAD)
    for weight in arch.head_extra:
        shape = _shape(weight.dims, shard, shard.head_tp)
        yield ShardedParameter(weight.name, shape, OTHER if len(shape) > 1 else NORM, part=HEAD)


def _whole(weight: Weight) -> tuple[int, ...]:
    return tuple(int(size) for _, size in weight.dims)


def _norm(weight: Weight) -> ShardedParameter:
    return ShardedParameter(weight.name, _whole(weight), NORM, part=NORMS)


def _layer(layer: Layer, shard: ServerShard) -> Iterator[ShardedParameter]:
    parts = ((layer.mixer_name, layer.mixer), *layer.beside)
    for name, mixer in parts:
        if mixer is not None:
            yield from _named(name, _mixer(mixer, shard))
    if isinstance(layer.mlp, Moe):
        yield from _named(layer.mlp_name, _moe(layer.mlp, shard))
    elif layer.mlp is not None:
        yield from _named(layer.mlp_name, _mlp(layer.mlp, shard, shard.tp, FEED_FORWARD))
    for _, norm in layer.norms:
        yield from (_norm(weight) for weight in norm.weights())
    for weight in layer.extra:
        yield _held(weight, _shape(weight.dims, shard), ATTENTION)


def _named(name: str, found: Iterator[ShardedParameter]) -> Iterator[ShardedParameter]:
    prefix = f"{name}." if name else ""
    return (ShardedParameter(prefix + h.name, h.shape, h.role, h.layer, h.part, h.ins,
                 joint=prefix + h.joint if h.joint else "") for h in found)  # fmt: skip


def _held(weight: Weight, shape: tuple[int, ...], part: str, *, transposed: bool = False,
          joint: str = "") -> ShardedParameter:  # fmt: skip
    """A matrix that is multiplied with, or something that never is quantized."""
    dims = dict(weight.dims)
    matrix = len(shape) == 2 and weight.name.endswith("weight") and "position" not in dims
    role = NORM if len(shape) == 1 else LINEAR if matrix else OTHER
    if joint:
        joint = f"{joint}.{weight.name.rpartition('.')[2]}"
    return ShardedParameter(
        weight.name, shape, role, part=part, ins=0 if transposed else -1, joint=joint
    )


def _mixer(mixer: Mixer, shard: ServerShard) -> Iterator[ShardedParameter]:
    if isinstance(mixer, StateSpace):
        yield from _state_space(mixer, shard)
        return
    part = ATTENTION if isinstance(mixer, Attention | LatentAttention) else STATE
    flipped, fused, plain, inputs = set(), "", set(), set()
    if isinstance(mixer, Attention):
        inputs = {w.name for linear in mixer.inputs for w in linear.weights()}
        flipped = {f"{one.name}.weight" for one in (*mixer.inputs, mixer.output) if one.transposed}
        fused = f"{mixer.inputs[0].name}." if _is_fused(mixer) else ""
        # norms over all heads of q and k are whole on each rank (OLMo 2); those with a row for
        # each head are cut (Cohere)
        plain = {w.name for norm in mixer.norms for w in norm.weights() if len(w.dims) == 1}
    for weight in mixer.weights():
        if weight.name in plain:
            shape = _whole(weight)
        elif fused and weight.name.startswith(fused) and isinstance(mixer, Attention):
            shape = _joined(weight, mixer, shard)
        else:
            shape = _heads(weight, mixer, shard)
        yield _held(weight, shape, part, transposed=weight.name in flipped,
                    joint="qkv" if weight.name in inputs else "")  # fmt: skip


def _is_fused(mixer: Attention) -> bool:
    """One projection for q, k and v; one for q alone is narrower."""
    both = mixer.head_dim + (mixer.value_dim or mixer.head_dim)
    width = mixer.heads * mixer.head_dim + mixer.kv_heads * both
    return len(mixer.inputs) == 1 and mixer.inputs[0].outs[1] == width


def _heads(weight: Weight, mixer: Mixer, shard: ServerShard) -> tuple[int, ...]:
    """Keys' and values' heads are repeated where there are more ranks."""
    if not isinstance(mixer, Attention):
        return _shape(weight.dims, shard)
    return tuple(
        shard.kv_heads(mixer.kv_heads) * (int(size) // mixer.kv_heads) if dim == "kv_heads"
        else _cut(dim, int(size), shard)
        for dim, size in weight.dims
    )  # fmt: skip


def _joined(weight: Weight, mixer: Attention, shard: ServerShard) -> tuple[int, ...]:
    """q, k and v in one projection."""
    both = mixer.head_dim + (mixer.value_dim or mixer.head_dim)
    rows = int(ceil_div(mixer.heads, shard.attention_tp)) * mixer.head_dim
    rows += shard.kv_heads(mixer.kv_heads) * both
    return tuple(rows if dim == "heads" else int(size) for dim, size in weight.dims)


def _state_space(mixer: StateSpace, shard: ServerShard) -> Iterator[ShardedParameter]:
    """z, x, B, C and dt come from one projection of Mamba-2, which B and C are not cut in alike."""
    wide, groups = mixer.inner // shard.attention_tp, shard.groups(mixer.groups)
    channels = wide + 2 * groups * mixer.state
    joined = {"conv1d": channels,
              "in_proj": wide + channels + mixer.heads // shard.attention_tp}  # fmt: skip
    for weight in mixer.parameters:
        module = weight.name.partition(".")[0]
        shape = _shape(weight.dims, shard)
        if mixer.version == 2 and module in joined:
            shape = (joined[module], *shape[1:])
        matrix = module in ("in_proj", "x_proj", "out_proj") and len(shape) == 2
        role = LINEAR if matrix else NORM if len(shape) == 1 else OTHER
        yield ShardedParameter(weight.name, shape, role, part=STATE)


def _mlp(mlp: Mlp, shard: ServerShard, ranks: int, part: str) -> Iterator[ShardedParameter]:
    for linear in (*mlp.inputs, mlp.output):
        for weight in linear.weights():
            shape = tuple(int(ceil_div(size, ranks)) if dim == "ffn" else int(size)
                          for dim, size in weight.dims)  # fmt: skip
            joint = "gate_up" if linear is not mlp.output else ""
            if joint and "." in linear.name:
                joint = f"{linear.name.rpartition('.')[0]}.{joint}"
            yield _held(weight, shape, part, transposed=linear.transposed, joint=joint)


def _moe(moe: Moe, shard: ServerShard) -> Iterator[ShardedParameter]:
    """Routers are whole on each rank, experts spread and cut."""
    yield from (ShardedParameter(w.name, _whole(w), ROUTER, part=EXPERTS) for w in moe.router)
    for weight in moe.experts:
        inner = "expert_ffn" if "down" in weight.name else "embed"
        names = [dim for dim, _ in weight.dims]
        ins = names.index(inner) if inner in names else -1
        role = EXPERT if len(names) > 2 else OTHER  # else a bias for each expert
        yield ShardedParameter(weight.name, _shape(weight.dims, shard), role, part=EXPERTS, ins=ins)
    if moe.shared is not None:
        yield from _mlp(moe.shared, shard, shard.shared_tp or shard.tp, FEED_FORWARD)
    if moe.shared_gate is not None:
        for weight in moe.shared_gate.weights():
            yield ShardedParameter(weight.name, _whole(weight), ROUTER, part=FEED_FORWARD)


def _shape(dims: tuple[Dim, ...], shard: ServerShard, vocab_tp: int = 0) -> tuple[int, ...]:
    """A tensor's dimensions after the cuts."""
    return tuple(_cut(dim, int(size), shard, vocab_tp) for dim, size in dims)


def _cut(dim: str, size: int, shard: ServerShard, vocab_tp: int = 0) -> int:
    if dim == "vocab":
        return shard.vocab(size, vocab_tp)
    ranks = {
        "heads": shard.attention_tp, "kv_heads": shard.attention_tp, "state": shard.attention_tp,
        "ffn": shard.tp, "expert": shard.ep, "expert_ffn": shard.expert_tp,
    }.get(dim, 1)  # fmt: skip
    return int(ceil_div(size, ranks))
