"""Feed-forward blocks of Megatron-Core: the MLP, and experts with token dispatch."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...ledger.num import Num, holds
from ...model.blocks import Mlp, Moe
from .ops import MegatronSetting, bias_sum, column_linear, row_linear, weight


def mlp(tape: Tape, how: MegatronSetting, x: Value, block: Mlp) -> Value:
    """linear_fc1, a fused activation that keeps its input, linear_fc2 (mlp.py:190-332).

    bias + gelu and bias + swiglu are one kernel each (bias_activation_fusion, on by default); the
    bias's gradient is the sum of its input's (fusions/fused_bias_gelu.py:33).
    """
    inner = block.ffn // how.tp
    wide = inner * (2 if block.gated else 1)
    made = column_linear(tape, how, x, "linear_fc1", how.hidden, wide)
    summed = bias_sum(how.tokens, wide) if block.inputs[0].bias else 0
    acted = tape.op("activation", made, elements=how.tokens * inner, saves=(made,),
                    back_temp=summed, settle=summed)  # fmt: skip
    return row_linear(tape, how, acted, "linear_fc2", inner, how.hidden)


def moe(tape: Tape, how: MegatronSetting, x: Value, block: Moe) -> Value:
    """Router, all-to-all dispatch, experts, and back (moe/token_dispatcher.py).

    Tokens are taken as spread evenly over the experts, as the load-balancing loss wants them;
    without a capacity factor nothing bounds how far a real batch is from that. Expert tensor
    parallelism is that of the rest of the model (model_parallel_config.py:506), which gathers
    tokens over its ranks. What was sent and received is named to the end. The shared expert reads
    the same input.
    """
    tokens, width = how.local_tokens, how.hidden
    _route(tape, how, x, block)
    places = tape.value("moe.row_map", tokens * block.top_k, 64, grad=False)
    sent = tape.op("moe.permuted", x, elements=tokens * block.top_k * width, saves=(places,))
    rows = how.tokens * block.top_k
    received = tape.op("moe.received", sent, elements=rows * width)
    ordered = tape.op("moe.sorted", received)
    experts = _grouped if how.transformer_engine else _one_by_one
    back = tape.op("moe.unsorted", experts(tape, how, ordered, block, rows))
    home = tape.op("moe.returned", back, elements=tokens * block.top_k * width)
    out = tape.op("moe.out", home, elements=tokens * width)
    tape.hold(sent, received)
    if block.shared is None:
        return out
    shared = mlp(tape, how, x, block.shared)
    return tape.op("moe.total", out, shared, passes=True)


def _expert(tape: Tape, how: MegatronSetting, x: Value, block: Moe, rows: Num, count: Num) -> Value:
    """The matmuls of `count` experts on `rows` tokens; gates are applied in the activation."""
    inner = block.ffn // how.tp
    wide = inner * (2 if block.gated else 1)
    first = weight(tape, how, "experts.fc1", count * wide * how.hidden)
    made = tape.op("experts.fc1", x, first, elements=rows * wide, saves=(x,))
    gates = tape.value("moe.gates", rows, 32, grad=False)
    acted = tape.op("experts.activation", made, elements=rows * inner, saves=(made, gates))
    second = weight(tape, how, "experts.fc2", count * inner * how.hidden)
    return tape.op("experts.fc2", acted, second, elements=rows * how.hidden, saves=(acted,))


def _grouped(tape: Tape, how: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """Transformer Engine: one grouped matmul for all experts (moe/experts.py TEGroupedMLP)."""
    return _expert(tape, how, x, block, rows, block.num_experts // how.ep)


def _one_by_one(tape: Tape, how: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """The local spec: expert after expert, their outputs joined (moe/experts.py SequentialMLP).

    In a search over cuts those that have fewer experts have empty ones.
    """
    local = block.num_experts // how.ep
    most = int(local.max()) if hasattr(local, "max") else int(local)
    each = [rows // local * holds(index < local) for index in range(most)]
    parts = tape.split("moe.chunks", x, [(f"moe.chunk.{i}", n * how.hidden)
                                         for i, n in enumerate(each)])  # fmt: skip
    outs = [_expert(tape, how, part, block, n, holds(i < local))
            for i, (part, n) in enumerate(zip(parts, each, strict=True))]  # fmt: skip
    return tape.op("experts.joined", *outs, elements=rows * how.hidden, passes=True)


def _route(tape: Tape, how: MegatronSetting, x: Value, block: Moe) -> None:
    """Logits, scores and scattered scores in fp32, and a boolean map (moe/router.py).

    Their gradient is too small to matter, so only what they keep is on the tape.
    """
    size = how.local_tokens * block.num_experts
    for name, bits in (("logits", 32), ("scores", 32), ("probabilities", 32), ("map", 8)):
        kept = tape.value(f"router.{name}", size, bits, grad=False)
        tape.op(f"router.{name}.made", x, elements=0, saves=(x, kept))
