"""The operations that Megatron-DeepSpeed's layers are made of, with their weights and biases.

Lines are of deepspeedai/Megatron-DeepSpeed 6acc370a (paths under megatron/), a fork of Megatron-LM
of 2023. Differences from Megatron-Core 0.19: each gradient of a norm or bias is a separate tensor,
which DeepSpeed's optimizers hold; bias + GeLU and bias + dropout + add run operation by
operation, because `torch.jit` no longer has a fuser (torch 2.11; initialize.py:320
set_jit_fusion_options switches NNC off and asks for nvFuser, which torch has removed).
"""

from __future__ import annotations

from ....ledger.num import EMPTY, Num, larger, sized
from ....models.arch.blocks import Norm, in_share
from ....pytorch.autograd.tape import Tape, Value
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
