"""One transformer layer of Megatron-Core, from its input to its output: the MLP, experts with token
dispatch, then the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ....ledger.num import EMPTY, Num, ceil_div, holds, largest, sized, smaller
from ....models.arch.arch import Layer
from ....models.arch.blocks import Attention, LatentAttention, Mlp, Moe
from ...autograd.recompute import discard
from ...autograd.tape import Tape, Value
from ...autograd.walk import BlockWalk, walk
from .attention import attention, latent_attention
from .ops import MegatronSetting, bias_sum, column_linear, norm, residual, row_linear, weight


def mlp(tape: Tape, setting: MegatronSetting, x: Value, block: Mlp) -> Value:
    """Record linear_fc1, a fused activation that saves its input, linear_fc2 (mlp.py:190-332).

    bias + gelu and bias + swiglu are one kernel each (bias_activation_fusion, on by default); the
    bias's gradient is the sum of its input's (fusions/fused_bias_gelu.py:33).
    """
    ffn = block.ffn // setting.tp
    columns = ffn * (2 if block.gated else 1)
    up = column_linear(tape, setting, x, "linear_fc1", setting.hidden, columns)
    work = bias_sum(setting.tokens, columns) if block.inputs[0].bias else EMPTY
    inner = tape.op(
        "activation", up, elements=setting.tokens * ffn, saves=(up,), back_temp=work, settle=work
    )
    return row_linear(tape, setting, inner, "linear_fc2", ffn, setting.hidden)


def moe(tape: Tape, setting: MegatronSetting, x: Value, block: Moe) -> Value:
    """Record router, dispatch, experts, and the way back (moe/moe_layer.py MoELayer.forward).

    Tokens are assumed to be spread evenly over the experts, as the load-balancing loss drives them;
    without a capacity factor nothing bounds how far a real batch is from that. The shared expert
    reads the same input, before the router.
    """
    begin = len(tape.ops)
    shared = None
    if block.shared is not None:
        shared = mlp(tape, setting, x, block.shared)
        if "shared_experts" in setting.recomputed:
            tape.regions.append(tape.ops[begin:])
    _route(tape, setting, x, block)
    dispatched = _gathered_tokens if setting.gathers_tokens else _exchanged_tokens
    out = dispatched(tape, setting, x, block)
    return out if shared is None else tape.op("moe.total", out, shared, passes=True)


def _exchanged_tokens(tape: Tape, setting: MegatronSetting, x: Value, block: Moe) -> Value:
    """Tokens that all-to-all brings to their experts and back (moe/token_dispatcher.py
    MoEAlltoAllTokenDispatcher).

    Expert tensor parallelism gathers the received tokens over its ranks and reduces what the
    experts return. A rank alone exchanges nothing (tensor_parallel/mappings.py:435), and the tokens
    of one expert are not sorted. Sent and received tokens stay named to the end.
    """
    tokens, width = setting.local_tokens, setting.hidden
    sent_rows = routed_rows(setting, block)
    rows, sent_size = sent_rows * setting.etp, sent_rows * width
    places = tape.value("moe.row_map", sent_rows, 64, grad=False)
    sent = tape.op("moe.permuted", x, elements=sent_size, saves=(places,))
    received = _exchange(tape, setting, sent, "moe.received", sent_size)
    inner = _experts(tape, setting, _sort(tape, setting, received, block, rows), block, rows)
    mine = _own_part(tape, setting, inner, block, sent_size)
    returned = _exchange(tape, setting, mine, "moe.returned", sent_size)
    out = tape.op("moe.out", returned, elements=tokens * width)
    tape.hold(sent, received)
    return out


def _own_part(tape: Tape, setting: MegatronSetting, inner: Value, block: Moe, size: Num) -> Value:
    """What the experts return in the order of the received tokens, reduced to this rank's part.

    The experts' output stays named meanwhile (moe_layer.py routed_experts_compute).
    """
    result = inner
    if not is_one(block.num_experts // setting.ep):
        result = tape.op("moe.unsorted", result)
    if not is_one(setting.etp):
        result = tape.op("moe.reduced", result, elements=size)
        tape.hold(inner)
    return result


def _exchange(tape: Tape, setting: MegatronSetting, x: Value, name: str, size: Num) -> Value:
    """What all-to-all returns: a new tensor, or its input on a rank alone."""
    return tape.alias(name, x) if is_one(setting.ep) else tape.op(name, x, elements=size)


def _sort(tape: Tape, setting: MegatronSetting, received: Value, block: Moe, rows: Num) -> Value:
    """The received tokens, gathered over the ranks that share an expert, and sorted by expert."""
    single = is_one(block.num_experts // setting.ep)
    if single and is_one(setting.etp):
        return received
    size = rows * setting.hidden
    whole = EMPTY if single else sized(size, setting.bits) * holds(setting.etp > 1)
    return tape.op("moe.sorted", received, elements=size, temp=whole, back_temp=whole)


def is_one(size: Num) -> bool:
    """Whether a size is the plain number 1; one in an array is treated like others."""
    return isinstance(size, int) and size == 1


def _gathered_tokens(tape: Tape, setting: MegatronSetting, x: Value, block: Moe) -> Value:
    """Tokens of all ranks of expert and expert tensor parallelism, of which each takes those of its
    experts (moe/token_dispatcher.py MoEAllGatherTokenDispatcher).

    They are gathered into the global memory buffer; their gradient, and what the experts return,
    are as large until they are reduced. The map from rows to tokens serves both ways.
    """
    width, ranks = setting.hidden, setting.etp * setting.ep
    rows = routed_rows(setting, block) * setting.etp
    everyone = setting.local_tokens * ranks * width
    whole = sized(everyone, setting.bits) * holds(ranks > 1)
    places = tape.value("moe.row_map", rows, 64, grad=False)
    local = tape.op("moe.permuted", x, elements=rows * width, saves=(places,), back_temp=whole)
    returned = _experts(tape, setting, local, block, rows)
    tape.hold(local)
    return tape.op(
        "moe.out",
        returned,
        elements=setting.local_tokens * width,
        saves=(places,),
        temp=whole,
        back_temp=whole,
    )


def routed_rows(setting: MegatronSetting, block: Moe) -> Num:
    """Rows that one rank sends to experts: top-k a token, at most the experts' capacity, or exactly
    that where they are padded (moe_utils.py get_capacity).
    """
    rows = setting.local_tokens * block.top_k
    if setting.capacity is None:
        return rows
    factor = Fraction(str(setting.capacity))
    share = ceil_div(rows * factor.numerator, block.num_experts * factor.denominator)
    most = share * block.num_experts
    return most if setting.pads_experts else smaller(rows, most)


def _experts(tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """The experts of this rank: one grouped matmul, or one expert after the other."""
    experts = _grouped if setting.transformer_engine else _one_by_one
    return experts(tape, setting, x, block, rows)


def _expert(
    tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num, count: Num
) -> Value:
    """The matmuls of `count` experts on `rows` tokens; gates are applied in the activation."""
    ffn = block.ffn // setting.etp
    columns = ffn * (2 if block.gated else 1)
    first = weight(tape, setting, "experts.fc1", count * columns * setting.hidden)
    up = tape.op("experts.fc1", x, first, elements=rows * columns, saves=(x,))
    gates = tape.value("moe.gates", rows, setting.bits, grad=False)
    inner = tape.op("experts.activation", up, elements=rows * ffn, saves=(up, gates))
    activation = tape.ops[-1:]
    second = weight(tape, setting, "experts.fc2", count * ffn * setting.hidden)
    out = tape.op("experts.fc2", inner, second, elements=rows * setting.hidden, saves=(inner,))
    if "moe_act" in setting.recomputed:
        discard(tape, activation, inner)
    return out


def _grouped(tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """Transformer Engine: one grouped matmul for all experts (moe/experts.py TEGroupedMLP)."""
    return _expert(tape, setting, x, block, rows, block.num_experts // setting.ep)


def _one_by_one(tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """The local spec: the experts in sequence, their outputs concatenated (moe/experts.py
    SequentialMLP).

    In an array of meshes, those with fewer experts per rank have empty ones.
    """
    local = block.num_experts // setting.ep
    if is_one(local):
        return _expert(tape, setting, x, block, rows, 1)
    most = largest(local)
    expert_rows = [rows // local * holds(index < local) for index in range(most)]
    sizes = [(f"moe.chunk.{i}", count * setting.hidden) for i, count in enumerate(expert_rows)]
    chunks = tape.split("moe.chunks", x, sizes)
    outs = [
        _expert(tape, setting, chunk, block, count, holds(i < local))
        for i, (chunk, count) in enumerate(zip(chunks, expert_rows, strict=True))
    ]
    return tape.op("experts.joined", *outs, elements=rows * setting.hidden, passes=True)


def _route(tape: Tape, setting: MegatronSetting, x: Value, block: Moe) -> None:
    """What router and dispatcher save: indices, scores and maps (moe/router.py, moe/moe_utils.py
    topk_routing_with_score_function and permute).

    Their gradients are too small to matter, so only what they save is on the tape.
    """
    for name, elements, bits in _routing_tensors(setting, block):
        saved = tape.value(f"router.{name}", elements, bits, grad=False)
        tape.op(f"router.{name}.made", x, elements=0, saves=(x, saved))


def _routing_tensors(setting: MegatronSetting, block: Moe) -> Iterator[tuple[str, Num, int]]:
    """Name, elements and bits of each. A sigmoid scores every expert, a softmax the chosen ones.

    All-to-all's dispatcher refers to probabilities and map, and the order of the rows is a view of
    a sort of the whole map. The gathering one has the part of its experts, of all tokens.
    """
    tokens, chosen = setting.local_tokens, setting.local_tokens * block.top_k
    pairs = tokens * block.num_experts
    yield "indices", chosen, 64
    yield "scores", pairs if "sigmoid" in block.router_impl else chosen, 32
    if setting.capacity is not None:
        yield "kept tokens", routed_rows(setting, block), 64
    if setting.gathers_tokens:
        if setting.capacity is not None:
            yield "mask of kept tokens", pairs, 8
        pairs = pairs * setting.etp
    else:
        yield "order", routed_rows(setting, block) if setting.pads_experts else pairs, 64
    yield "probabilities", pairs, setting.bits
    yield "map", pairs, 8


def _run_norm(tape: Tape, setting: MegatronSetting, x: Value, layer: Layer, where: str) -> Value:
    block = layer.norm(where)
    return x if block is None else norm(tape, setting, x, block)


def _run_mixer(tape: Tape, setting: MegatronSetting, inner: Value, layer: Layer) -> Value:
    if isinstance(layer.mixer, LatentAttention):
        return latent_attention(tape, setting, inner, layer.mixer)
    assert isinstance(layer.mixer, Attention)
    return attention(tape, setting, inner, layer.mixer)


def _run_mlp(tape: Tape, setting: MegatronSetting, inner: Value, layer: Layer) -> Value:
    begin = len(tape.ops)
    if isinstance(layer.mlp, Moe):
        out, name = moe(tape, setting, inner, layer.mlp), "moe"
    else:
        assert isinstance(layer.mlp, Mlp)
        out, name = mlp(tape, setting, inner, layer.mlp), "mlp"
    if name in setting.recomputed:
        tape.regions.append(tape.ops[begin:])
        tape.leaves += [inner] if name == "moe" else []  # the dispatcher refers to its graph
    return out


def run_layer(tape: Tape, setting: MegatronSetting, x: Value, layer: Layer) -> Value:
    """Record attention and MLP, each with its norm and a fused bias-dropout-add
    (transformer_layer.py).

    Each half names its norm's output until it is done.
    """
    begin = len(tape.ops)
    inner = _run_norm(tape, setting, x, layer, "pre")
    norm_ops = tape.ops[begin:]
    mixed = _run_mixer(tape, setting, inner, layer)
    if recomputes_norm(setting, layer, "pre"):
        discard(tape, norm_ops, inner)
    mixed = _run_norm(tape, setting, mixed, layer, "post")
    inside = 0.0 if layer.mixer is None else layer.mixer.residual_dropout
    x = residual(tape, x, mixed, layer.dropout or inside)
    tape.hold(inner)
    begin = len(tape.ops)
    inner = _run_norm(tape, setting, x, layer, "pre_mlp")
    norm_ops = tape.ops[begin:]
    inside = layer.mlp.dropout if isinstance(layer.mlp, Mlp) else 0.0
    mlp_out = _run_mlp(tape, setting, inner, layer)
    if recomputes_norm(setting, layer, "pre_mlp"):
        discard(tape, norm_ops, inner)
    mlp_out = _run_norm(tape, setting, mlp_out, layer, "post_mlp")
    x = residual(tape, x, mlp_out, layer.dropout or inside)
    tape.hold(inner)
    return x


def recomputes_norm(setting: MegatronSetting, layer: Layer, where: str) -> bool:
    """Whether `layernorm` of recompute_modules recomputes the norm at this place: one that is a
    module of its own, which Transformer Engine's are only before experts (gpt_layer_specs.py).
    """
    apart = not setting.transformer_engine or (where == "pre_mlp" and isinstance(layer.mlp, Moe))
    return "layernorm" in setting.recomputed and apart and layer.norm(where) is not None


def layer_walk(
    setting: MegatronSetting, layer: Layer, *, checkpointed: int = 0, given: bool = False
) -> BlockWalk:
    """What one layer keeps for backward, and its peaks in both directions.

    Weight gradients are added to the main-gradient buffer at once, so none stays. A checkpoint
    holds the layer's input and its output's gradient until it is done (tensor_parallel/random.py
    CheckpointFunction); so does the schedule with a gradient that another stage has sent (`given`).
    `checkpointed`: the number of such layers under one checkpoint; 0: there is none.
    """
    tape = Tape()
    tape.inputs_first = True  # tensor_parallel/layers.py:626, 725
    tape.checkpoint_holds = True  # tensor_parallel/random.py CheckpointFunction.backward
    x = tape.value("layer.input", setting.local_tokens * setting.hidden, setting.bits)
    y = x
    for _ in range(checkpointed or 1):
        y = run_layer(tape, setting, y, layer)
    return walk(
        tape,
        x,
        y,
        recompute_core=setting.selective,
        checkpoint="reentrant" if checkpointed else "",
        output_grad_held=bool(checkpointed) or given,
    )
