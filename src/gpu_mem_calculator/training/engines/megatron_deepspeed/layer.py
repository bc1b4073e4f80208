"""The operations of one layer of Megatron-DeepSpeed, with their weights and biases, and of the head
after the last layer.

Lines are of deepspeedai/Megatron-DeepSpeed 6acc370a, a fork of Megatron-LM of 2023 (paths under
megatron/), of model/transformer.py where no file is named. Differences from Megatron-Core 0.19:
each gradient of a norm or bias is a separate tensor, which DeepSpeed's optimizers hold; bias + GeLU
and bias + dropout + add run operation by operation, because `torch.jit` no longer has a fuser
(torch 2.11; initialize.py:320 set_jit_fusion_options switches NNC off and asks for nvFuser, which
torch has removed).
"""

from __future__ import annotations

from ....ledger.num import EMPTY, Num, larger, sized
from ....models.arch.arch import Layer
from ....models.arch.blocks import Attention, Mlp, Norm, in_share
from ....pytorch.autograd.tape import Tape, Value
from ....pytorch.autograd.walk import BlockWalk, walk
from ....pytorch.modelling.megatron.attention import softmax, softmax_kernel
from ....pytorch.modelling.megatron.ops import MegatronSetting, bias_sum

Sizes = tuple[Num, Num]  # inputs and outputs of a matmul
GELU_FORWARD, GELU_BACKWARD = 7, 5
"""Temporaries of the activation's size besides the result, one for each product and sum
(model/fused_bias_gelu.py:15-28)."""


def weight(tape: Tape, setting: MegatronSetting, name: str, elements: Num) -> Value:
    """A parameter, scaled with the model's parameter count where the user has set one."""
    return tape.param(name, in_share(elements, setting.share), setting.bits)


def column_linear(
    tape: Tape, setting: MegatronSetting, x: Value, name: str, sizes: Sizes, *, bias: bool = False
) -> Value:
    """A matmul that is sharded along its output (core/tensor_parallel/layers.py:249-384).

    It saves its input, which sequence parallelism gathers into the global buffer in forward and
    backward; the gradient of the whole gathered input is alive together with this rank's part.
    `bias`: the layer adds it, in a new tensor.
    """
    ins, outs = sizes
    full, size = setting.full_bytes(ins), setting.tokens * outs
    weights = [weight(tape, setting, f"{name}.weight", ins * outs)]
    if bias:
        weights.append(weight(tape, setting, f"{name}.bias", outs))
    temp, back = EMPTY, full
    if bias:
        temp, back = sized(size, setting.bits), full + bias_sum(setting.tokens, outs)
    return tape.op(name, x, *weights, saves=(x,), elements=size, temp=temp, back_temp=back)


def row_linear(
    tape: Tape, setting: MegatronSetting, x: Value, name: str, sizes: Sizes, *, bias: bool = False
) -> Value:
    """A matmul that is sharded along its input (layers.py:740-805).

    The ranks' results are summed in place; with sequence parallelism they are reduce-scattered, and
    the gradient is gathered (mappings.py:101, 121). `bias`: the layer adds it, in a new tensor.
    """
    ins, outs = sizes
    matrix = weight(tape, setting, f"{name}.weight", ins * outs)
    out = tape.op(name, x, matrix, saves=(x,), elements=setting.tokens * outs)
    if setting.sequence_parallel:
        out = tape.op(f"{name}.scattered", out, elements=setting.local_tokens * outs)
    if bias:
        out = add_bias(tape, setting, out, name, outs)
    return out


def add_bias(
    tape: Tape, setting: MegatronSetting, x: Value, name: str, width: Num, *, expanded: bool = False
) -> Value:
    """x + bias, in a new tensor; the bias's gradient is a sum over rows.

    `expanded`: the sum needs a copy, since the bias has the output's shape (transformer.py:1288).
    """
    summed = bias_sum(x.elements() // width, width)
    vector = weight(tape, setting, f"{name}.bias", width)
    back = (x.bytes, summed) if expanded else summed
    return tape.op(f"{name}.biased", x, vector, passes=True, back_temp=back)


def norm(tape: Tape, setting: MegatronSetting, x: Value, layer: Norm) -> Value:
    """Apex's fused norms save their input and fp32 statistics of rows (fused_layer_norm.py:104).

    A layer norm has a mean and a deviation for each row, an RMS norm only the deviation.
    """
    width = layer.size[1]
    count = 2 if layer.impl.startswith("layer") else 1
    stats = tape.value(f"{layer.name}.statistics", x.elements() // width * count, 32, grad=False)
    weights = [weight(tape, setting, f"{layer.name}.weight", width)]
    if layer.bias:
        weights.append(weight(tape, setting, f"{layer.name}.bias", width))
    return tape.op(layer.name, x, *weights, saves=(x, stats))


def dropout_add(tape: Tape, x: Value, branch: Value) -> Value:
    """x + dropout(branch) (transformer.py:863-884).

    The script makes a mask and a copy at every rate, also 0; a variable keeps the branch alive to
    the end.
    """
    mask = tape.value(f"{branch.name}.mask", branch.elements(), 8, grad=False)
    dropped = tape.op(f"{branch.name}.dropped", branch, saves=(mask,))
    total = tape.op("residual", x, dropped, passes=True)
    tape.hold(branch)
    return total


def biased_gelu(tape: Tape, setting: MegatronSetting, x: Value, width: Num) -> Value:
    """gelu(x + bias), which saves only x (model/fused_bias_gelu.py:30-43)."""
    vector = weight(tape, setting, "gelu.bias", width)
    back = [x.bytes] * GELU_BACKWARD
    rest = larger(bias_sum(setting.tokens, width) - GELU_BACKWARD * x.bytes, EMPTY)
    return tape.op(
        "gelu", x, vector, saves=(x,), temp=(x.bytes,) * GELU_FORWARD, back_temp=(*back, rest)
    )


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
