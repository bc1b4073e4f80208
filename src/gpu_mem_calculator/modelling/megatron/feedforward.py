"""Feed-forward blocks of Megatron-Core: the MLP, and experts with token dispatch."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...ledger.num import EMPTY, Num, holds
from ...model.blocks import Mlp, Moe
from .ops import MegatronSetting, bias_sum, column_linear, row_linear, weight


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
    """Record router, all-to-all dispatch, experts, and the way back (moe/token_dispatcher.py).

    Tokens are assumed to be spread evenly over the experts, as the load-balancing loss drives them;
    without a capacity factor nothing bounds how far a real batch is from that. Expert tensor
    parallelism is that of the rest of the model (model_parallel_config.py:506), which gathers
    tokens over its ranks. Sent and received tokens stay named to the end. The shared expert reads
    the same input.
    """
    tokens, width = setting.local_tokens, setting.hidden
    _route(tape, setting, x, block)
    places = tape.value("moe.row_map", tokens * block.top_k, 64, grad=False)
    sent = tape.op("moe.permuted", x, elements=tokens * block.top_k * width, saves=(places,))
    rows = setting.tokens * block.top_k
    received = tape.op("moe.received", sent, elements=rows * width)
    ordered = tape.op("moe.sorted", received)
    experts = _grouped if setting.transformer_engine else _one_by_one
    unsorted = tape.op("moe.unsorted", experts(tape, setting, ordered, block, rows))
    returned = tape.op("moe.returned", unsorted, elements=tokens * block.top_k * width)
    out = tape.op("moe.out", returned, elements=tokens * width)
    tape.hold(sent, received)
    if block.shared is None:
        return out
    shared = mlp(tape, setting, x, block.shared)
    return tape.op("moe.total", out, shared, passes=True)


def _expert(
    tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num, count: Num
) -> Value:
    """The matmuls of `count` experts on `rows` tokens; gates are applied in the activation."""
    ffn = block.ffn // setting.tp
    columns = ffn * (2 if block.gated else 1)
    first = weight(tape, setting, "experts.fc1", count * columns * setting.hidden)
    up = tape.op("experts.fc1", x, first, elements=rows * columns, saves=(x,))
    gates = tape.value("moe.gates", rows, 32, grad=False)
    inner = tape.op("experts.activation", up, elements=rows * ffn, saves=(up, gates))
    second = weight(tape, setting, "experts.fc2", count * ffn * setting.hidden)
    return tape.op("experts.fc2", inner, second, elements=rows * setting.hidden, saves=(inner,))


def _grouped(tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """Transformer Engine: one grouped matmul for all experts (moe/experts.py TEGroupedMLP)."""
    return _expert(tape, setting, x, block, rows, block.num_experts // setting.ep)


def _one_by_one(tape: Tape, setting: MegatronSetting, x: Value, block: Moe, rows: Num) -> Value:
    """The local spec: the experts in sequence, their outputs concatenated (moe/experts.py
    SequentialMLP).

    In an array of meshes, those with fewer experts per rank have empty ones.
    """
    local = block.num_experts // setting.ep
    most = int(local.max()) if hasattr(local, "max") else int(local)
    expert_rows = [rows // local * holds(index < local) for index in range(most)]
    sizes = [(f"moe.chunk.{i}", count * setting.hidden) for i, count in enumerate(expert_rows)]
    chunks = tape.split("moe.chunks", x, sizes)
    outs = [
        _expert(tape, setting, chunk, block, count, holds(i < local))
        for i, (chunk, count) in enumerate(zip(chunks, expert_rows, strict=True))
    ]
    return tape.op("experts.joined", *outs, elements=rows * setting.hidden, passes=True)


def _route(tape: Tape, setting: MegatronSetting, x: Value, block: Moe) -> None:
    """Logits, scores and scattered scores in fp32, and a boolean map (moe/router.py).

    Their gradients are too small to matter, so only what they save is on the tape.
    """
    size = setting.local_tokens * block.num_experts
    for name, bits in (("logits", 32), ("scores", 32), ("probabilities", 32), ("map", 8)):
        saved = tape.value(f"router.{name}", size, bits, grad=False)
        tape.op(f"router.{name}.made", x, elements=0, saves=(x, saved))
