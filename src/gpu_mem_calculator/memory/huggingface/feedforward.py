"""Feed-forward blocks: plain, gated, mixtures of experts, state-space mixers."""

from __future__ import annotations

from ...ledger.num import Num
from ...model.blocks import Mlp, Moe, StateSpace, Weight
from ..tape import Tape, Value
from .ops import Setting, activation, add, linear, maybe_dropout, multiply, scale


def mlp(tape: Tape, setting: Setting, x: Value, block: Mlp) -> Value:
    """down(act(gate x) · up x), or down(act(up x))."""
    made = [linear(tape, setting, x, layer) for layer in block.inputs]
    if not block.gated:
        inner = activation(tape, setting, made[0], block.activation)
    else:
        if len(made) == 1:  # one fused projection, split into views
            gate, up = _halves(tape, made[0])
        else:
            gate, up = made
        inner = multiply(tape, activation(tape, setting, gate, block.activation), up, "mlp.product")
    out = linear(tape, setting, inner, block.output)
    return maybe_dropout(tape, setting, out, block.dropout)


def _halves(tape: Tape, whole: Value) -> tuple[Value, Value]:
    """The two halves of a fused projection."""
    half = whole.elements() // 2
    gate, up = tape.split("mlp.split", whole, [("mlp.gate", half), ("mlp.up", half)])
    return gate, up


def _expert_weight(tape: Tape, setting: Setting, weights: list[Weight], index: int) -> Value:
    weight = weights[index]
    value = tape.param(weight.name, weight.numel, setting.weight_bits, grad=not setting.frozen)
    if setting.weight_bits != setting.matmul_bits:
        return tape.op(f"{weight.name}.to", value, bits=setting.matmul_bits)
    return value


def moe(tape: Tape, setting: Setting, x: Value, block: Moe) -> Value:
    """Router, then all experts at once by grouped matmul (integrations/moe.py:377).

    Tokens are gathered in the order of their experts, each `top_k` times. Counts are exact;
    only the number of tokens per expert depends on the data, and no tensor's size does.
    """
    tokens = setting.tokens
    picked = tokens * (block.num_experts if block.all_tokens else block.top_k)
    bits = setting.matmul_bits
    scores = _route(tape, setting, x, block)
    matrices = sorted((w for w in block.experts if w.numel > 1), key=lambda w: -w.numel)
    weights = [w for w in matrices if len(w.dims) >= 2 and "bias" not in w.name]
    index = tape.value("moe.permutation", picked * 3, 64, grad=False)
    gathered = tape.op("moe.gathered", x, elements=picked * setting.hidden, saves=(index,))
    width: Num = block.ffn * (2 if block.gated else 1)
    gathered = tape.cast(gathered, bits)
    up_weight = _expert_weight(tape, setting, weights, 0)
    up = tape.op(
        "moe.up", gathered, up_weight, elements=picked * width, saves=(gathered, up_weight)
    )
    up = tape.op("moe.up_masked", up)
    if block.gated:
        gate, value = _halves(tape, up)
        inner = multiply(
            tape, activation(tape, setting, gate, block.activation), value, "moe.product"
        )
    else:
        inner = activation(tape, setting, up, block.activation)
    down_weight = _expert_weight(tape, setting, weights, len(weights) - 1)
    down = tape.op(
        "moe.down", inner, down_weight, elements=picked * setting.hidden, saves=(inner, down_weight)
    )
    down = tape.op("moe.down_masked", down)
    weighted = multiply(tape, down, scores, "moe.weighted")
    restored = tape.op("moe.restored", weighted, elements=picked * setting.hidden)
    out = tape.cast(tape.op("moe.sum", restored, elements=tokens * setting.hidden), x.bits)
    return _with_shared(tape, setting, x, block, out)


def _route(tape: Tape, setting: Setting, x: Value, block: Moe) -> Value:
    """Router logits, softmax in fp32, the best `top_k` of them."""
    size = setting.tokens * block.num_experts
    weight = tape.param(
        "router", block.num_experts * setting.hidden, setting.weight_bits, grad=not setting.frozen
    )
    logits = tape.op("moe.logits", x, weight, elements=size, bits=setting.matmul_bits, saves=(x,))
    probs = tape.op("moe.probs", tape.cast(logits, 32), save_out=True)
    index = tape.value("moe.index", setting.tokens * block.top_k, 64, grad=False)
    best = tape.op("moe.best", probs, elements=setting.tokens * block.top_k, saves=(index,))
    return tape.op("moe.scores", best, save_out=True)


def _with_shared(tape: Tape, setting: Setting, x: Value, block: Moe, out: Value) -> Value:
    if block.shared is None:
        return out
    shared = mlp(tape, setting, x, block.shared)
    if block.shared_gate is not None:
        gate = linear(tape, setting, x, block.shared_gate)
        opened = tape.op("moe.shared_gate", gate, save_out=True)
        shared = tape.op("moe.shared", shared, opened, saves=(shared, opened))
    return add(tape, out, shared, "moe.total")


def state_space(tape: Tape, setting: Setting, x: Value, block: StateSpace) -> Value:
    """A Mamba mixer with its fused kernels (mamba-ssm 2.2): the projection, the scan's output
    and its row statistics are kept; chunk states are made again in backward.
    """
    tokens = setting.tokens
    width = 2 * block.inner + 2 * block.groups * block.state + block.heads
    if block.version == 1:
        width = 2 * block.inner
    bits = setting.matmul_bits
    weights = sorted(block.parameters, key=lambda w: -w.numel)
    into = tape.param(
        weights[0].name, weights[0].numel, setting.weight_bits, grad=not setting.frozen
    )
    projected = tape.op("ssm.projected", x, into, elements=tokens * width, bits=bits, saves=(x,))
    chunk = 256
    states = setting.batch * (-(-setting.seq // chunk)) * block.inner * block.state * 4
    scanned = tape.op(
        "ssm.scanned", projected, elements=tokens * block.inner, saves=(projected,),
        save_out=True, temp=states, back_temp=2 * states,
    )  # fmt: skip
    gated = scale(tape, scanned, "ssm.gated")
    out = tape.param(
        weights[1].name, weights[1].numel, setting.weight_bits, grad=not setting.frozen
    )
    return tape.op("ssm.out", gated, out, elements=x.elements(), bits=bits, saves=(gated,))
