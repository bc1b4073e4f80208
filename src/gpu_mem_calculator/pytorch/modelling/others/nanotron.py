"""nanotron's Llama, whose parallelism is Megatron-LM's: one layer, and the head.

Read at nanotron 2411b02 (paths under src/nanotron) and flash-attn 2.8.3. Sharding, gathers and
sizes are those of `megatron/ops.py`; here is what the layers' own code does.
"""

from __future__ import annotations

from msgspec.structs import replace

from ....ledger.num import Num, holds, larger
from ....models.arch.arch import Layer
from ....models.arch.blocks import Attention, Mlp, Norm
from ...autograd.tape import Tape, Value
from ...autograd.walk import BlockWalk, walk
from ..huggingface.losses import LossKernel
from ..megatron.attention import MegatronHeads, core_attention
from ..megatron.ops import MegatronSetting, column_linear, norm, row_linear


def layer_walk(
    setting: MegatronSetting, layer: Layer, *, checkpointed: int = 0, given: bool = False
) -> BlockWalk:
    """What one layer keeps for backward, and its peaks in both directions
    (models/llama.py LlamaDecoderLayer._core_forward). `checkpointed`: layers in its checkpoint, one
    or none. `given`: as in Megatron's.
    """
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.mlp, Mlp)
    setting, tape = _own(setting), Tape()
    x = tape.value("layer.input", setting.local_tokens * setting.hidden, setting.bits)
    normed = _norm(tape, setting, x, layer, "pre")
    mixed = _attention(tape, setting, normed, layer.mixer)
    hidden = tape.op("residual", x, mixed, passes=True)
    normed = _norm(tape, setting, hidden, layer, "pre_mlp")
    out = _mlp(tape, setting, normed, layer.mlp)
    y = tape.op("residual.mlp", hidden, out, passes=True)
    return walk(
        tape,
        x,
        y,
        checkpoint="reentrant" if checkpointed else "",
        output_grad_held=bool(checkpointed) or given,
    )


def _own(setting: MegatronSetting) -> MegatronSetting:
    """Activations are gathered into new tensors for each matmul, and again in backward
    (tensor_parallel/functional.py, tp_recompute_allgather); attention is flash-attn's.
    """
    return replace(setting, transformer_engine=True, fused_attention=True)


def _norm(tape: Tape, setting: MegatronSetting, x: Value, layer: Layer, where: str) -> Value:
    """TritonRMSNorm saves its input and one fp32 number per row (nn/layer_norm.py)."""
    block = layer.norm(where)
    assert block is not None
    return norm(tape, setting, x, block)


def _attention(tape: Tape, setting: MegatronSetting, x: Value, block: Attention) -> Value:
    """q, k and v are copied out of the fused projection, k and v joined and copied once more; the
    rotary kernel writes q to a new tensor and k in place (models/llama.py _forward_training,
    flash_attn/layers/rotary.py ApplyRotaryEmbKV_).

    With several sequences the output projection reads and saves a copy in its own order.
    """
    size = block.head_dim
    heads, kv_heads = block.heads // setting.tp, larger(block.kv_heads // setting.tp, 1)
    columns = (heads + 2 * kv_heads) * size
    fused = column_linear(tape, setting, x, "qkv_proj", setting.hidden, columns)
    counts = (("q", heads), ("k", kv_heads), ("v", kv_heads))
    parts = [(f"attn.{name}", setting.tokens * count * size) for name, count in counts]
    q, k, v = (
        tape.op(f"{part.name}.copied", part) for part in tape.split("attn.split", fused, parts)
    )
    both = setting.tokens * 2 * kv_heads * size
    joined = tape.op("attn.joined", k, v, elements=both)
    pair = tape.op("attn.pair", joined)
    rotated = tape.op("rotary.q", q)
    halves = [("attn.k_rotated", both // 2), ("attn.v_pair", both // 2)]
    key, value = tape.split("attn.halves", pair, halves)
    grouped = block.heads != block.kv_heads
    shard = MegatronHeads(heads, size, size, grouped)
    out = core_attention(tape, setting, rotated, key, value, shard)
    several = holds(setting.batch > 1)
    copied = tape.value("attn.out_copied", out.elements() * several, setting.bits, grad=False)
    tape.hold(q, k, v, rotated, pair)
    projected = row_linear(tape, setting, out, "o_proj", heads * size, setting.hidden)
    tape.ops[-1].saves += (copied,)
    return projected


def _mlp(tape: Tape, setting: MegatronSetting, x: Value, block: Mlp) -> Value:
    """down(silu(gate) · up), unfused: the projection, the activation and the product are saved
    (models/llama.py GLUActivation).
    """
    ffn = block.ffn // setting.tp
    half = setting.tokens * ffn
    merged = column_linear(tape, setting, x, "gate_up_proj", setting.hidden, 2 * ffn)
    gate, up = tape.split("mlp.split", merged, [("mlp.gate", half), ("mlp.up", half)])
    opened = tape.op("mlp.silu", gate, saves=(gate,))
    inner = tape.op("mlp.product", opened, up, saves=(opened, up))
    tape.hold(merged)
    return row_linear(tape, setting, inner, "down_proj", ffn, setting.hidden)


def head_walk(
    setting: MegatronSetting, final: Norm | None, vocab: Num, loss: LossKernel, *, shared: bool
) -> BlockWalk:
    """Final norm, lm_head, an fp32 copy of the logits, and the sharded cross entropy.

    The loss subtracts the maximum into a second fp32 tensor, which becomes the softmax
    (tensor_parallel/functional.py _ShardedCrossEntropy). Backward turns it into the gradient in
    place; here that is a new tensor, so that backward is as high as forward, and no higher.
    """
    setting, tape = _own(setting), Tape()
    x = tape.value("stack.output", setting.local_tokens * setting.hidden, setting.bits)
    out = x if final is None else norm(tape, setting, x, final)
    logits = column_linear(tape, setting, out, "lm_head", setting.hidden, vocab)
    for weight in tape.weights():
        weight.waits = shared and weight.name == "lm_head.weight"
    wide = tape.cast(logits, 32)
    tape.hold(logits)
    softmax = tape.value("loss.softmax", logits.elements(), 32, grad=False)
    target = tape.value("loss.target", setting.tokens * 9, 8, grad=False)
    saves = (softmax, target)
    result = tape.op("loss", wide, elements=setting.tokens, bits=32, saves=saves)
    tape.hold(wide)
    return walk(tape, x, result)
