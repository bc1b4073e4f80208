"""One decoder layer, from its input to its output, and the walk over it.

DeepSeek's latent attention (MLA) comes first, as transformers 5.17.0 trains and runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ....ledger.num import Num
from ....ledger.remember import remembered
from ....models.arch.arch import Layer
from ....models.arch.blocks import Attention, LatentAttention, Mlp, StateSpace
from ...autograd.tape import Tape, Value
from ...autograd.walk import BlockWalk, Checkpoint, walk
from .attention import attention
from .attention_inputs import AttentionInputs
from .attention_kernels import attend
from .feedforward import mlp
from .linear import linear
from .norms import norm
from .ops import add, maybe_dropout, scale
from .rotary import rotate
from .setting import BlockSetting

if TYPE_CHECKING:
    from .cache import LayerCache


def latent_attention(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    block: LatentAttention,
    *,
    masked: bool = False,
    cache: LayerCache | None = None,
) -> Value:
    """DeepSeek's MLA as transformers trains it: keys and values are computed for every head.

    models/deepseek_v3/modeling_deepseek_v3.py: q and k are concatenations of a part without and
    a part with rotary embedding, head by head; their head size differs from the values'.
    """
    tokens, nope = setting.tokens, block.nope_dim
    q = linear(tape, setting, x, block.query[0])
    if block.query_norm is not None:
        q = linear(tape, setting, norm(tape, setting, q, block.query_norm), block.query[1])
    if cache is not None:
        return _cached_latent(tape, setting, x, q, block, cache, masked=masked)
    latent = linear(tape, setting, x, block.kv_a)
    kv, rope = _parts(tape, "split", latent, tokens, latent=block.kv_rank, k_rope=block.rope_dim)
    kv = linear(tape, setting, norm(tape, setting, kv, block.kv_norm), block.kv_b)
    per_head = tokens * block.heads
    q_nope, q_rope = _parts(tape, "q_split", q, per_head, q_nope=nope, q_rope=block.rope_dim)
    k_nope, value = _parts(tape, "kv_split", kv, per_head, k_nope=nope, value=block.value_dim)
    q_rope = rotate(tape, setting, q_rope, (1, 1), block.rotary_impl)
    k_rope = rotate(tape, setting, rope, (1, 1), block.rotary_impl)
    size = per_head * (block.nope_dim + block.rope_dim)
    query = tape.op("mla.query", q_nope, q_rope, elements=size)
    key = tape.op("mla.key", k_nope, k_rope, elements=size)
    heads = _latent_heads(block, masked)
    mixed = attend(tape, setting, query, key, value, heads)
    out = linear(tape, setting, mixed, block.output)
    tape.hold(query, key, value)
    return out


def _parts(tape: Tape, name: str, whole: Value, rows: Num, **widths: int) -> list[Value]:
    """Parts of a tensor of `rows` rows, as views; `widths`: columns of each, by its name."""
    sizes = [(f"mla.{part}", rows * width) for part, width in widths.items()]
    return tape.split(f"mla.{name}", whole, sizes)


def _cached_latent(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    q: Value,
    block: LatentAttention,
    cache: LayerCache,
    *,
    masked: bool,
) -> Value:
    """The same with a cache, which holds the latents; keys and values are computed from all of them
    (modeling_deepseek_v3.py, DeepseekV3Attention.forward and expand_kv).
    """
    tokens, rows = setting.tokens, setting.batch * cache.length(setting) * block.heads
    per_head, nope = tokens * block.heads, block.nope_dim
    q_nope, q_rope = _parts(tape, "q_split", q, per_head, q_nope=nope, q_rope=block.rope_dim)
    latent = linear(tape, setting, x, block.kv_a)
    kv, rope = _parts(tape, "split", latent, tokens, latent=block.kv_rank, k_rope=block.rope_dim)
    kv = norm(tape, setting, kv, block.kv_norm)
    q_rotated = rotate(tape, setting, q_rope, (1, 1), block.rotary_impl)
    k_rope = rotate(tape, setting, rope, (1, 1), block.rotary_impl)
    kv, k_rope = cache.update(tape, setting, kv, k_rope)
    size = block.nope_dim + block.rope_dim
    query = tape.op("mla.query", q_nope, q_rotated, elements=per_head * size)
    expanded = linear(tape, setting, kv, block.kv_b)
    k_nope, value = _parts(tape, "kv_split", expanded, rows, k_nope=nope, value=block.value_dim)
    key = tape.op("mla.key", k_nope, k_rope, elements=rows * size)
    heads = _latent_heads(block, masked)
    mixed = attend(tape, setting, query, key, value, heads)
    out = linear(tape, setting, mixed, block.output)
    tape.hold(query, key, value, q_nope, q_rotated, latent)
    return out


def _latent_heads(block: LatentAttention, masked: bool) -> AttentionInputs:
    """A key and a value for every query head; q is concatenated from two parts, head by head."""
    return AttentionInputs(
        heads=block.heads,
        kv_heads=block.heads,
        head_dim=block.nope_dim + block.rope_dim,
        value_dim=block.value_dim,
        masked=masked,
        dropout=block.dropout,
        head_major=True,
    )


ATTENTION, MLP = "attention", "mlp"  # modules that may have a checkpoint of their own


def _run_mixer(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    layer: Layer,
    masked: bool,
    cache: LayerCache | None,
) -> Value:
    block, begin = layer.mixer, len(tape.ops)
    if isinstance(block, Attention):
        out = attention(tape, setting, x, block, masked=masked, cache=cache)
    elif isinstance(block, LatentAttention):
        out = latent_attention(tape, setting, x, block, masked=masked, cache=cache)
    else:
        from .state_space import state_space

        assert isinstance(block, StateSpace)
        out = state_space(tape, setting, x, block, cache)
    if ATTENTION in tape.checkpointed:
        tape.regions.append(tape.ops[begin:])
    tape.hold(x)  # the layer's code names it until the block returns
    if setting.quirks.attention_output_named:
        tape.returned.append(out)
    if setting.quirks.attention_input_named:
        tape.returned.append(x)
    return out


def _run_mlp(tape: Tape, setting: BlockSetting, x: Value, layer: Layer) -> Value:
    block, begin = layer.mlp, len(tape.ops)
    if isinstance(block, Mlp):
        out = mlp(tape, setting, x, block)
    else:
        from .experts import moe

        assert block is not None
        out = moe(tape, setting, x, block)
    if MLP in tape.checkpointed:
        tape.regions.append(tape.ops[begin:])
    if not setting.quirks.inline_mlp:
        tape.hold(x)
    return out


def _run_norm(tape: Tape, setting: BlockSetting, x: Value, layer: Layer, where: str) -> Value:
    """The norm at one place of the layer; x itself where there is none."""
    block = layer.norm(where)
    if block is None:
        return x
    if layer.fp32_residual:  # Mamba2Block casts the stream for its norm (modeling_mamba2.py)
        x = tape.cast(x, setting.bits)
    return norm(tape, setting, x, block)


def run_layer(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    layer: Layer,
    *,
    masked: bool,
    cache: LayerCache | None = None,
) -> Value:
    """Record one layer; x is its input, and its output is returned.

    `masked`: attention gets a mask tensor.
    """
    if layer.parallel:
        return _run_parallel(tape, setting, x, layer, masked, cache)
    normed: Value | None = None
    if layer.mixer is not None:
        normed = _run_norm(tape, setting, x, layer, "pre")
        mixed = _run_mixer(tape, setting, normed, layer, masked, cache)
        mixed = _run_norm(tape, setting, mixed, layer, "post")
        x = _add_branch(tape, setting, x, mixed, layer)
        if setting.quirks.branch_inputs_named:
            tape.hold(normed)
        x = _run_norm(tape, setting, x, layer, "after")
    if layer.mlp is not None:
        before, normed = normed, _run_norm(tape, setting, x, layer, "pre_mlp")
        if setting.quirks.residual_inside and before is not None:
            tape.hold(before)  # the second norm takes over its name
        mlp_out = _run_mlp(tape, setting, normed, layer)
        mlp_out = _run_norm(tape, setting, mlp_out, layer, "post_mlp")
        x = _add_branch(tape, setting, x, mlp_out, layer)
        if setting.quirks.branch_inputs_named:
            tape.hold(normed)
        x = _run_norm(tape, setting, x, layer, "after_mlp")
    return x


def _add_branch(tape: Tape, setting: BlockSetting, x: Value, branch: Value, layer: Layer) -> Value:
    """The residual plus a branch's output."""
    if setting.quirks.scaled_branches:
        out = add(tape, x, scale(tape, branch, "branch.scaled"))
        tape.hold(branch)  # named until the sum is
    else:
        out = add(tape, x, maybe_dropout(tape, setting, branch, layer.dropout))
    if tape.branch:
        tape.hold(*tape.branch)
        tape.branch = []
    return out


def _run_parallel(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    layer: Layer,
    masked: bool,
    cache: LayerCache | None,
) -> Value:
    """A layer whose mixer and MLP both read its input, through one norm or two."""
    quirks, two_norms = setting.quirks, layer.norm("pre_mlp") is not None
    mixer_in = mlp_in = _run_norm(tape, setting, x, layer, "pre")
    if two_norms and not quirks.second_norm_late:
        mlp_in = _run_norm(tape, setting, x, layer, "pre_mlp")
    mixed = _run_mixer(tape, setting, mixer_in, layer, masked, cache)
    mixed = maybe_dropout(tape, setting, mixed, layer.dropout)
    if two_norms and quirks.second_norm_late:
        mlp_in = _run_norm(tape, setting, x, layer, "pre_mlp")
    mlp_out = _run_mlp(tape, setting, mlp_in, layer)
    mlp_out = maybe_dropout(tape, setting, mlp_out, layer.dropout)
    if quirks.both_norms_named:
        tape.hold(mixer_in)
    return add(tape, add(tape, mixed, mlp_out, "branches"), x)


def residual_bits(setting: BlockSetting, layer: Layer) -> int:
    """Bits of the hidden states between layers.

    Autocast runs torch's layer norm in fp32, and bitsandbytes' projections return the dtype of
    their input (nn/modules.py:637), so they make the sum with the residual fp32, too. The number of
    tokens does not matter.
    """
    bits = 32 if layer.fp32_residual else setting.bits
    if setting.quantization is None or not setting.autocast:
        return bits
    return max(bits, _sum_bits(replace(setting, batch=1, seq=1, labelled=None), layer, bits))


@remembered(256)
def _sum_bits(setting: BlockSetting, layer: Layer, bits: int) -> int:
    """Bits of a layer's output where its input has `bits`."""
    tape = Tape()
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits)
    return run_layer(tape, setting, x, layer, masked=False).bits


def layer_walk(
    setting: BlockSetting,
    layer: Layer,
    *,
    masked: bool = False,
    recompute_core: bool = False,
    grad: bool = True,
    checkpoint: Checkpoint = "",
    keeps: tuple[str, ...] | None = None,
    early_stop: bool = True,
    offloaded: bool = False,
    modules: tuple[str, ...] = (),
) -> BlockWalk:
    """What one layer keeps for backward, and its peaks in both directions.

    `masked`: attention gets a mask tensor. `recompute_core`: core attention is checkpointed.
    `grad`: the layer's input takes a gradient. `checkpoint`: around the layer as a whole. `keeps`:
    a checkpoint keeps the results of these operations. `early_stop`: of a checkpoint.
    `offloaded`: its input is on the host.
    `modules`: those that have a checkpoint each (ATTENTION, MLP).
    """
    tape = Tape()
    tape.checkpointed, tape.caches_casts = modules, setting.autocast_cache
    bits = residual_bits(setting, layer)
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits, grad=grad)
    cache = None
    if setting.use_cache:
        from .cache import UnusedCache

        cache = UnusedCache(tape)
    y = run_layer(tape, setting, x, layer, masked=masked, cache=cache)
    tape.hold(x, *tape.returned)  # the model's loop and the layer's own code name them
    if not setting.frozen:
        tape.add_other_weights(layer.num_parameters, setting.weight_bits)
    if setting.compiled:
        from ...autograd.compiled import compiled_tape

        tape = compiled_tape(tape, x, y)
    if keeps is not None:
        from ...autograd.op_walk import walk_by_operation

        return walk_by_operation(tape, x, y, keeps, early_stop=early_stop)
    return walk(
        tape,
        x,
        y,
        recompute_core=recompute_core,
        checkpoint=checkpoint,
        early_stop=early_stop,
        offloaded=offloaded,
    )
