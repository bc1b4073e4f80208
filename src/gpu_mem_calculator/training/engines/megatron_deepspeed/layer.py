"""The operations of one layer of Megatron-DeepSpeed, and of the head after the last layer.

Lines are of deepspeedai/Megatron-DeepSpeed 6acc370a, megatron/model/transformer.py where no file
is named.
"""

from __future__ import annotations

from ....ledger.num import EMPTY, Num, sized
from ....models.arch.arch import Layer
from ....models.arch.blocks import Attention, Mlp, Norm
from ....pytorch.autograd.tape import Tape, Value
from ....pytorch.autograd.walk import BlockWalk, walk
from ....pytorch.modelling.megatron.attention import softmax, softmax_kernel
from ....pytorch.modelling.megatron.ops import MegatronSetting
from .ops import add_bias, biased_gelu, column_linear, dropout_add, norm, row_linear

Heads = tuple[Value, Value, Value]  # queries, keys and values


def attention(tape: Tape, setting: MegatronSetting, x: Value, block: Attention) -> Value:
    """query_key_value, grouped heads repeated, rotary embedding, core attention, dense (:690-859).

    A variable (`mixed_x_layer`) keeps the projection alive until `dense` has returned.
    """
    size, heads, kv_heads = block.head_dim, block.heads // setting.tp, block.kv_heads // setting.tp
    rows = (heads + 2 * kv_heads) * size
    sizes, bias = (setting.hidden, rows), block.inputs[0].bias
    mixed = column_linear(tape, setting, x, "query_key_value", sizes, bias=bias)
    parts = [("attn.q", heads), ("attn.k", kv_heads), ("attn.v", kv_heads)]
    q, k, v = tape.split("attn.split", mixed, [(n, setting.tokens * c * size) for n, c in parts])
    if block.heads != block.kv_heads:  # reshape copies q; k and v are repeated (:660-679)
        q = tape.op("attn.q_copy", q, passes=True)
        k = tape.op("attn.k_repeated", k, elements=setting.tokens * heads * size)
        v = tape.op("attn.v_repeated", v, elements=setting.tokens * heads * size)
    if block.rotary_dim:
        q, k = rotate(tape, q, block), rotate(tape, k, block)
    out = core_attention(tape, setting, (q, k, v), heads, block.dropout)
    dense = row_linear(tape, setting, out, "dense", (heads * size, setting.hidden))
    tape.hold(mixed)
    return dense


def rotate(tape: Tape, x: Value, block: Attention) -> Value:
    """x · cos + half(x) · sin (rotary_pos_embedding.py:48-72); all layers share the two tables.

    If only a part of each head is rotated, it is joined with the rest in a new tensor.
    """
    size = x.elements() * block.rotary_dim // block.head_dim
    half = sized(size, x.bits) // 2
    left = tape.op(f"{x.name}.left", x, elements=size)
    half_turn = tape.op(f"{x.name}.half", x, elements=size, temp=half, back_temp=half)
    right = tape.op(f"{x.name}.right", half_turn)
    total = tape.op(f"{x.name}.rotated", left, right, passes=True)
    tape.hold(left)
    if block.rotary_dim == block.head_dim:
        return total
    return tape.op(f"{x.name}.joined", total, elements=x.elements(), passes=True)


def core_attention(
    tape: Tape, setting: MegatronSetting, inputs: Heads, heads: Num, dropout: float
) -> Value:
    """baddbmm, mask and softmax, dropout, bmm, and a contiguous copy (:277-363).

    Backward multiplies with the gradient of the scores, then scales each product in a new tensor.
    """
    q, k, v = inputs
    tape.core = True
    area = setting.batch * heads * setting.seq * setting.seq
    scores = tape.op("attn.scores", q, k, elements=area, saves=(q, k), back_temp=q.bytes)
    probs = softmax(tape, setting, scores, softmax_kernel(setting, heads))
    if dropout:
        mask = tape.value("attn.dropout_mask", area, 8, grad=False)
        probs = tape.op("attn.dropped", probs, elements=area, bits=setting.bits, saves=(mask,))
    mixed = tape.op("attn.mixed", v, probs, elements=v.elements(), saves=(probs, v))
    out = tape.op("attn.out", mixed, passes=True)
    tape.hold(scores)
    tape.core = False
    return out


def mlp(tape: Tape, setting: MegatronSetting, x: Value, block: Mlp) -> Value:
    """dense_h_to_4h, the activation, dense_4h_to_h with its bias (:91-177)."""
    inner = block.ffn // setting.tp
    width = inner * (2 if block.gated else 1)
    product = column_linear(tape, setting, x, "dense_h_to_4h", (setting.hidden, width))
    if block.gated:
        if block.inputs[0].bias:
            product = add_bias(tape, setting, product, "dense_h_to_4h", width)
        halves = [(name, setting.tokens * inner) for name in ("gate", "up")]
        gate, up = tape.split("chunk", product, halves)
        silu = tape.op("silu", gate, saves=(gate,))
        acted = tape.op("swiglu", silu, up, saves=(silu, up))
        tape.hold(product)
    elif block.inputs[0].bias:
        acted = biased_gelu(tape, setting, product, width)
    else:
        acted = tape.op("gelu", product, saves=(product,))
    sizes, bias = (inner, setting.hidden), block.output.bias
    return row_linear(tape, setting, acted, "dense_4h_to_h", sizes, bias=bias)


def run_layer(tape: Tape, setting: MegatronSetting, x: Value, layer: Layer) -> Value:
    """Attention and MLP, each after its norm, each followed by dropout and addition (:1245-1375).

    The attention's bias is added with the dropout, the MLP's inside the MLP. Variables keep both
    branches alive until the layer returns.
    """
    mixer, block, first, second = layer.mixer, layer.mlp, layer.norm("pre"), layer.norm("pre_mlp")
    assert isinstance(mixer, Attention)
    assert isinstance(block, Mlp)
    assert first is not None
    assert second is not None
    mixed = attention(tape, setting, norm(tape, setting, x, first), mixer)
    branch = mixed
    if mixer.output.bias:
        branch = add_bias(tape, setting, mixed, "dense", setting.hidden, expanded=True)
    x = dropout_add(tape, x, branch)
    fed = mlp(tape, setting, norm(tape, setting, x, second), block)
    out = dropout_add(tape, x, fed)
    tape.hold(mixed, fed)
    return out


def layer_walk(setting: MegatronSetting, layer: Layer, *, checkpointed: bool = False) -> BlockWalk:
    """Walk one layer: the tensors it saves, and its peaks in forward and backward.

    DeepSpeed's checkpoint is reentrant: it holds the layer's input, and the gradient of its output,
    until its backward returns (deepspeed 0.19.8
    runtime/activation_checkpointing/checkpointing.py:764).
    """
    tape = Tape()
    tape.inputs_first = True  # core/tensor_parallel/layers.py:317, 376
    tape.checkpoint_holds = True  # core/tensor_parallel/random.py CheckpointFunction.backward
    x = tape.value("layer.input", setting.local_tokens * setting.hidden, setting.bits)
    y = run_layer(tape, setting, x, layer)
    return walk(
        tape,
        x,
        y,
        recompute_core=setting.selective,
        output_grad_held=checkpointed,
        checkpoint="reentrant" if checkpointed else "",
    )


def head_walk(
    setting: MegatronSetting, final: Norm, vocab: Num, *, tied: bool, piped: bool
) -> BlockWalk:
    """Final norm, logits and the vocabulary-parallel loss; `vocab`: this rank's columns.

    The loss takes an fp32 copy of the logits less their maximum, turns it into the softmax in
    place, saves that, and turns it into their gradient (core/tensor_parallel/cross_entropy.py).

    piped: the fp32 logits are the pipeline's output, which outlives the head and has its own entry;
      otherwise they and the 16-bit logits are freed when the loss returns
    tied: the gradient of the shared table waits for the embedding's
    """
    tape = Tape()
    tape.inputs_first = True
    x = tape.value("stack.output", setting.local_tokens * setting.hidden, setting.bits)
    out = norm(tape, setting, x, final)
    logits = column_linear(tape, setting, out, "output_layer", (setting.hidden, vocab))
    tape.ops[-1].ins[1].waits = tied
    fp32_logits = sized(setting.tokens * vocab, 32)
    saved = [tape.value("loss.target", setting.tokens * 9, 8, grad=False)]
    softmaxed = tape.value("loss.softmax", logits.elements(), 32, grad=False)
    if setting.bits < 32:
        saved.append(softmaxed)
    else:  # fp32 logits need no copy, and their gradient is the softmax's tensor
        tape.ops[-1].saves += (softmaxed,)
    loss = tape.op(
        "loss",
        logits,
        elements=setting.tokens,
        bits=32,
        saves=saved,
        passes=setting.bits == 32,
        temp=EMPTY if piped or setting.bits == 32 else fp32_logits,
    )
    return walk(tape, x, loss)
