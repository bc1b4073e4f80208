"""Mixtures of experts: the router, the experts, and the shared expert that every token uses.

Line numbers refer to transformers 5.17.0.
"""

from __future__ import annotations

from ....ledger.num import Num, sized
from ....models.arch.blocks import Moe, Weight, in_share
from ...autograd.tape import MM, Tape, Value
from .activation import activation, gated
from .feedforward import halves, mlp
from .linear import linear
from .ops import add
from .setting import BlockSetting


def moe(tape: Tape, setting: BlockSetting, x: Value, block: Moe) -> Value:
    """Record router, experts and shared expert. Qwen2-MoE runs its shared expert first."""
    if block.all_tokens:
        return _all_experts(tape, setting, x, block)
    if block.jitter and setting.training:
        x = _add_jitter(tape, x, "moe.noise")
    shared = mlp(tape, setting, x, block.shared) if block.shared and block.shared_gate else None
    scores = route(tape, setting, x, block)
    out = _grouped(tape, setting, x, block, scores)
    if block.shared is None:
        return out
    if shared is None or block.shared_gate is None:
        return add(tape, out, mlp(tape, setting, x, block.shared), "moe.total")
    gate = tape.op("moe.shared_gate", linear(tape, setting, x, block.shared_gate), save_out=True)
    shared = tape.op("moe.shared", shared, gate, saves=(shared, gate), back_temp=shared.bytes)
    return add(tape, out, shared, "moe.total")


def _add_jitter(tape: Tape, x: Value, name: str) -> Value:
    """x *= noise, in place: the noise is saved (modeling_mixtral.py:125)."""
    noise = tape.value(name, x.elements(), x.bits, grad=False)
    jittered = tape.op("moe.jittered", x, saves=(noise,))
    jittered.base = x.base
    return jittered


def route(tape: Tape, setting: BlockSetting, x: Value, block: Moe) -> Value:
    """The score of each chosen expert, by the router's implementation:

    - `softmax`: over all experts in fp32, the best `top_k`, cast back (modeling_qwen3_moe.py:258)
    - `softmax_wide`: left in fp32, so the weighted outputs are too (modeling_mixtral.py:104)
    - `float_softmax`, `float_sigmoid`: the matmul itself is in fp32, on copies of x and of the
      router (modeling_deepseek_v2.py:98, modeling_deepseek_v3.py:144), and the scores stay in fp32
    - `top_softmax`: over the chosen experts alone (modeling_gpt_oss.py:126)
    - `sparsemixer`: chooses experts in turn, with separate noise on x, in place
      (modeling_phimoe.py:349, :482); counted as `softmax`, whose maps are as small
    """
    impl, bits = block.router_impl, setting.matmul_bits
    if impl == "sparsemixer" and block.jitter and setting.training:
        x = _add_jitter(tape, x, "router.noise")
    size = in_share(block.num_experts * setting.hidden, block.router[0].share)
    weight = tape.param("router", size, setting.weight_bits, grad=not setting.frozen)
    if impl.startswith("float"):
        weight, x = tape.cast(weight, 32), tape.cast(x, 32)
        bits = bits if setting.autocast else 32
    weight, x = tape.cast(weight, bits), tape.cast(x, bits)
    saves = _matmul_saves(setting, x, weight)
    count = setting.tokens * block.num_experts
    kernel = "" if impl == "top_softmax" else MM  # gpt-oss adds a bias
    logits = tape.op("moe.logits", x, weight, elements=count, bits=bits, saves=saves, kernel=kernel)
    index = tape.value("moe.index", setting.tokens * block.top_k, 64, grad=False)
    chosen = setting.tokens * block.top_k
    if impl == "top_softmax":
        best = tape.op("moe.best", logits, elements=chosen, saves=(index,))
        return tape.op("moe.scores", best, save_out=True)
    probs = tape.op("moe.probs", tape.cast(logits, 32), save_out=True)
    best = tape.op("moe.best", probs, elements=chosen, saves=(index,))
    scores = tape.op("moe.scores", best, save_out=True)
    return tape.cast(scores, logits.bits) if impl in ("softmax", "sparsemixer") else scores


def _weights(tape: Tape, setting: BlockSetting, block: Moe, bits: int) -> tuple[Value, Value]:
    """The stacked up and down projections, cast to the `bits` of the matmul."""
    stacked = [w for w in block.experts if len(w.dims) >= 2 and "bias" not in w.name]
    largest_first = sorted(stacked, key=lambda w: -w.numel)
    up, down = largest_first[0], largest_first[-1]
    return _weight(tape, setting, up, bits), _weight(tape, setting, down, bits)


def _weight(tape: Tape, setting: BlockSetting, weight: Weight, bits: int) -> Value:
    value = tape.param(weight.name, weight.numel, setting.weight_bits, grad=not setting.frozen)
    return value if value.bits == bits else tape.op(f"{weight.name}.to", value, bits=bits)


def _grouped(tape: Tape, setting: BlockSetting, x: Value, block: Moe, scores: Value) -> Value:
    """All experts by grouped matmul (grouped_mm_experts_forward, integrations/moe.py:377).

    Tokens are gathered in the order of their experts, each `top_k` times. Sizes are exact: only
    the number of tokens per expert depends on the data, and no tensor's size depends on that. The
    backward of an indexing allocates zeros, then a copy with the gradient written into it.
    Autocast does not cast grouped matmuls: they run in the weights' dtype
    (integrations/moe.py:325).
    """
    if setting.decoding and not setting.grouped_experts:
        return _batched(tape, setting, x, block, scores)
    bits = setting.weight_bits
    picked = setting.tokens * block.top_k
    index = tape.value("moe.permutation", picked * 3, 64, grad=False)
    gathered = tape.op(
        "moe.gathered", x, elements=picked * setting.hidden, saves=(index,), back_temp=x.bytes
    )
    gathered = tape.cast(gathered, bits)
    up_weight, down_weight = _weights(tape, setting, block, bits)
    width: Num = block.ffn * (2 if block.gated else 1)
    biases = [_bias(tape, setting, picked * width)] if _has_bias(block) else []
    ins = (gathered, up_weight, *biases)
    saves = _matmul_saves(setting, gathered, up_weight)
    up = tape.op("moe.up", *ins, elements=picked * width, saves=saves)
    inner = _inner(tape, setting, tape.op("moe.up_masked", up), block)
    tape.hold(*biases)
    biases = [_bias(tape, setting, picked * setting.hidden)] if _has_bias(block) else []
    ins = (inner, down_weight, *biases)
    saves = _matmul_saves(setting, inner, down_weight)
    down = tape.op("moe.down", *ins, elements=picked * setting.hidden, saves=saves)
    masked = tape.op("moe.down_masked", down)
    weighted = _weighted(tape, masked, scores)
    restored = tape.op("moe.restored", weighted, back_temp=weighted.bytes)
    tape.hold(weighted, *biases)
    total = tape.op("moe.sum", restored, elements=setting.tokens * setting.hidden)
    tape.hold(gathered, masked)  # named until the function returns
    return tape.cast(total, x.bits)


def _batched(tape: Tape, setting: BlockSetting, x: Value, block: Moe, scores: Value) -> Value:
    """In decode, `generate` copies each token's experts for one batched matmul
    (generation/utils.py:2313 _optimize_model_for_decode, integrations/moe.py
    batched_mm_experts_forward). A copy stays named until the next one is complete.
    """
    bits, picked = setting.weight_bits, setting.tokens * block.top_k
    repeated = tape.op("moe.repeated", x, elements=picked * setting.hidden, bits=bits)
    width: Num = block.ffn * (2 if block.gated else 1)
    up_copy = tape.op("moe.up_copy", repeated, elements=picked * width * setting.hidden)
    biases = [_bias(tape, setting, picked * width)] if _has_bias(block) else []
    up = tape.op("moe.up", repeated, up_copy, *biases, elements=picked * width)
    inner = _inner(tape, setting, up, block)
    down_copy = tape.op("moe.down_copy", inner, elements=picked * block.ffn * setting.hidden)
    tape.hold(up_copy)
    down_biases = [_bias(tape, setting, picked * setting.hidden)] if _has_bias(block) else []
    tape.hold(*biases)
    down = tape.op("moe.down", inner, down_copy, *down_biases, elements=picked * setting.hidden)
    weighted = _weighted(tape, down, scores)
    total = tape.op("moe.sum", weighted, elements=setting.tokens * setting.hidden)
    tape.hold(repeated, down_copy, down, weighted, *down_biases)
    return tape.cast(total, x.bits)


def _matmul_saves(setting: BlockSetting, x: Value, weight: Value) -> tuple[Value, ...]:
    """What a matmul saves: the weight, and its input unless the weight is frozen."""
    return (weight,) if setting.frozen else (x, weight)


def _has_bias(block: Moe) -> bool:
    return any("bias" in w.name for w in block.experts)


def _bias(tape: Tape, setting: BlockSetting, elements: Num) -> Value:
    """One row of the biases for every gathered token."""
    source = tape.value("moe.biases", 0, setting.weight_bits, grad=False)
    return tape.op("moe.bias", source, elements=elements)


def _inner(tape: Tape, setting: BlockSetting, up: Value, block: Moe) -> Value:
    """The activation between the two projections."""
    if not block.gated:
        return activation(tape, setting, up, block.activation)
    gate, value = halves(tape, up)
    return gated(tape, setting, gate, value, block.activation)


def _weighted(tape: Tape, down: Value, scores: Value) -> Value:
    """Each row times its score. Backward computes the products for both factors in full: the
    scores' gradient is then summed, the rows' is cast where the scores have a wider dtype.
    """
    bits = max(down.bits, scores.bits)
    product = sized(down.elements(), bits)
    widened = down.bits < bits
    return tape.op(
        "moe.weighted",
        down,
        scores,
        bits=bits,
        saves=(down, scores),
        back_temp=(product,) * (2 if widened else 1),
        casts=down if widened else None,
    )


def _all_experts(tape: Tape, setting: BlockSetting, x: Value, block: Moe) -> Value:
    """Llama4TextMoe (modeling_llama4.py): every expert on every token, scaled by its score."""
    tokens, bits = setting.tokens, setting.matmul_bits
    size = in_share(block.num_experts * setting.hidden, block.router[0].share)
    weight = tape.param("router", size, setting.weight_bits, grad=not setting.frozen)
    tokens_in, weight = tape.cast(x, bits), tape.cast(weight, bits)
    saves = _matmul_saves(setting, tokens_in, weight)
    rows = tokens * block.num_experts
    logits = tape.op("moe.logits", tokens_in, weight, elements=rows, bits=bits, saves=saves)
    index = tape.value("moe.index", tokens * block.top_k, 64, grad=False)
    sigmoid = tape.op("moe.sigmoid", tape.cast(logits, 32), saves=(index,), save_out=True)
    scores = tape.op("moe.scores", tape.cast(sigmoid, bits))
    copies = tape.op("moe.repeated", x, elements=rows * setting.hidden)
    scaled = tape.op("moe.scaled", copies, scores, saves=(copies, scores), back_temp=copies.bytes)
    experts_in = tape.cast(scaled, bits)
    up_weight, down_weight = _weights(tape, setting, block, bits)
    width: Num = block.ffn * (2 if block.gated else 1)
    saves = _matmul_saves(setting, experts_in, up_weight)
    up = tape.op("moe.up", experts_in, up_weight, elements=rows * width, saves=saves)
    inner = _inner(tape, setting, up, block)
    saves = _matmul_saves(setting, inner, down_weight)
    down = tape.op("moe.down", inner, down_weight, elements=rows * setting.hidden, saves=saves)
    shared = None if block.shared is None else mlp(tape, setting, x, block.shared)
    out = tape.op("moe.sum", down, elements=tokens * setting.hidden)
    if shared is not None:
        out = add(tape, shared, out, "moe.total")
        out.base = shared.base  # in place
    tape.hold(down, scaled)
    return out
