"""Tensors of a model by llama.cpp's names, before they have a type.

llama.cpp b10586 (b21e4de7): conversion/*.py and gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import (
    Attention,
    LatentAttention,
    Linear,
    Mixer,
    Mlp,
    Moe,
    Recurrence,
    StateSpace,
    Weight,
)


class UntypedTensor(Struct, frozen=True):
    """A tensor before it has a type.

    - `name`: its name without the block; `elements`: its size; `row`: elements of a row
    - `category`: what llama.cpp's rules call it; empty: it stays F32
    - `cube`: whether it is a stack of matrices
    """

    name: str
    elements: int
    row: int = 0
    category: str = ""
    cube: bool = False


def _numel(weights: Iterator[Weight]) -> int:
    return sum(weight.numel for weight in weights)


def _linear_tensors(name: str, linear: Linear, category: str = "other") -> Iterator[UntypedTensor]:
    """A projection; category `other` is quantized by the file's default type."""
    ins, outs = linear.ins[1], linear.outs[1]
    yield UntypedTensor(f"{name}.weight", ins * outs, ins, category)
    if linear.bias:
        yield UntypedTensor(f"{name}.bias", outs)


def embedding_tensors(arch: Arch) -> Iterator[UntypedTensor]:
    """The embeddings and their norm."""
    for weight in arch.embedding:
        if "vocab" in dict(weight.dims):
            yield UntypedTensor("token_embd.weight", weight.numel, weight.dims[-1][1], "token_embd")
        else:
            yield UntypedTensor("position_embd.weight", weight.numel)
    if arch.embedding_norm is not None:
        yield UntypedTensor("token_embd_norm", _numel(arch.embedding_norm.weights()))


def head_tensors(arch: Arch) -> Iterator[UntypedTensor]:
    """The final norm and the output; a tied output is not stored."""
    if arch.final_norm is not None:
        yield UntypedTensor("output_norm", _numel(arch.final_norm.weights()))
    if arch.head is not None:
        yield from _linear_tensors("output", arch.head, "output")
    yield from (UntypedTensor(weight.name, weight.numel) for weight in arch.head_extra)


NORMS = {"pre": "attn_norm", "post": "post_attention_norm"}
NORMS |= {"pre_mlp": "ffn_norm", "post_mlp": "post_ffw_norm"}


def layer_tensors(arch: Arch, layer: Layer, index: int) -> Iterator[UntypedTensor]:
    """Tensors of one layer, with names relative to the block."""
    mlp = layer.mlp
    for mixer in layer.mixers:
        yield from _mixer_tensors(mixer, split=arch.family == "baichuan")
    if isinstance(mlp, Moe):
        yield from _expert_tensors(mlp)
        block = f"{arch.layer_prefix}.{index}.{layer.mlp_name}."
        bias = "e_score_correction_bias"
        if any(b.name in (f"{block}gate.{bias}", f"{block}{bias}") for b in arch.buffers):
            yield UntypedTensor("exp_probs_b.bias", mlp.num_experts)
    elif mlp is not None:
        yield from _feed_forward_tensors(mlp)
    for place, norm in layer.norms:
        yield UntypedTensor(NORMS.get(place, place), _numel(norm.weights()))
    yield from (_single_tensor("", weight) for weight in layer.extra)


def _mixer_tensors(mixer: Mixer, *, split: bool) -> Iterator[UntypedTensor]:
    if isinstance(mixer, StateSpace):
        yield from (_single_tensor("ssm_", weight) for weight in mixer.weights())
    elif isinstance(mixer, Recurrence):
        yield from _recurrence_tensors(mixer)
    else:
        if isinstance(mixer, LatentAttention):
            yield from _latent_tensors(mixer)
        elif not mixer.borrowed:
            yield from _attention_tensors(mixer, split=split)
        if mixer.index is not None:
            yield from (_single_tensor("indexer.", weight) for weight in mixer.index.weights())


def _single_tensor(prefix: str, weight: Weight) -> UntypedTensor:
    """A parameter as one tensor: matrices are quantized, but not convolutions and tables."""
    matrix = len(weight.dims) == 2 and weight.name.endswith("weight")
    quantized = matrix and not any(word in weight.name for word in ("norm", "conv", "weights_proj"))
    row = weight.dims[-1][1]
    return UntypedTensor(
        prefix + weight.name, weight.numel, row if quantized else 0, "other" if quantized else ""
    )


def _attention_tensors(mixer: Attention, *, split: bool) -> Iterator[UntypedTensor]:
    first, names = mixer.inputs[0], ("attn_q", "attn_k", "attn_v")
    fused = len(mixer.inputs) == 1 and not mixer.reuses
    if fused and split:  # conversion/baichuan.py splits W_pack
        third = Linear(first.name, first.ins, (first.outs[0], first.outs[1] // 3), first.bias)
        for name in names:
            yield from _linear_tensors(name, third, name)
    elif fused:
        yield from _linear_tensors("attn_qkv", first, "attn_qkv")
    else:
        for name, linear in zip(names, mixer.inputs, strict=False):
            yield from _linear_tensors(name, linear, name)
    yield from _linear_tensors("attn_output", mixer.output, "attn_output")
    for norm in mixer.norms:
        yield UntypedTensor(f"attn_{norm.name}", _numel(norm.weights()))
    yield from (UntypedTensor(f"attn_{weight.name}", weight.numel) for weight in mixer.extra)


def _recurrence_tensors(mixer: Recurrence) -> Iterator[UntypedTensor]:
    """Linear attention: q, k and v by attention's names, the rest by those of states.

    conversion/qwen.py splits Qwen3-Next's in_proj_qkvz.
    """
    values = mixer.heads * mixer.value_dim
    names = {
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "qkv_proj": "attn_qkv",
        "in_proj_qkv": "attn_qkv",
    }
    for weight in mixer.parameters:
        module, _, kind = weight.name.rpartition(".")
        row = weight.dims[-1][1]
        if module == "in_proj_qkvz":
            yield UntypedTensor("attn_qkv.weight", weight.numel - values * row, row, "attn_qkv")
            yield UntypedTensor("attn_gate.weight", values * row, row, "other")
        elif module in names and kind == "weight":
            yield UntypedTensor(f"{names[module]}.weight", weight.numel, row, names[module])
        else:
            yield _single_tensor("ssm_", weight)


def _latent_tensors(mixer: LatentAttention) -> Iterator[UntypedTensor]:
    """kv_b is split into keys and values, the keys transposed: rows of one head's size."""
    names = ("attn_q_a", "attn_q_b") if len(mixer.query) == 2 else ("attn_q",)
    for name, linear in zip(names, mixer.query, strict=True):
        yield from _linear_tensors(name, linear, name if name == "attn_q" else "other")
    yield from _linear_tensors("attn_kv_a_mqa", mixer.kv_a)
    rank, heads = mixer.kv_rank, mixer.heads
    yield UntypedTensor(
        "attn_k_b.weight", heads * mixer.nope_dim * rank, mixer.nope_dim, "other", cube=True
    )
    yield UntypedTensor("attn_v_b.weight", heads * mixer.value_dim * rank, rank, "other", cube=True)
    yield from _linear_tensors("attn_output", mixer.output, "attn_output")
    for norm in (mixer.query_norm, mixer.kv_norm):
        if norm is not None:
            yield UntypedTensor(f"attn_{norm.name}", _numel(norm.weights()))


def _feed_forward_tensors(mlp: Mlp, suffix: str = "") -> Iterator[UntypedTensor]:
    """gate and up; or up alone, which may contain both (Phi-3, GLM)."""
    names = ("ffn_gate", "ffn_up") if len(mlp.inputs) == 2 else ("ffn_up",)
    for name, linear in zip(names, mlp.inputs, strict=True):
        yield from _linear_tensors(f"{name}{suffix}", linear, name)
    yield from _linear_tensors(f"ffn_down{suffix}", mlp.output, "ffn_down")


def _expert_tensors(moe: Moe) -> Iterator[UntypedTensor]:
    """One tensor for each matrix of all experts, gate and up separate; the router stays F32."""
    for weight in moe.router:
        yield UntypedTensor(f"ffn_gate_inp.{weight.name.rpartition('.')[2]}", weight.numel)
    for weight in moe.experts:
        sizes, down = dict(weight.dims), "down" in weight.name
        halves = ("ffn_down",) if down else ("ffn_gate", "ffn_up") if moe.gated else ("ffn_up",)
        each = weight.numel // len(halves)
        for name in halves:
            if len(sizes) == 2:
                yield UntypedTensor(f"{name}_exps.bias", each)
            else:
                row = sizes["expert_ffn"] if down else sizes["embed"]
                yield UntypedTensor(f"{name}_exps.weight", each, row, name, cube=True)
    if moe.shared is not None:
        yield from _feed_forward_tensors(moe.shared, "_shexp")
    if moe.shared_gate is not None:
        yield UntypedTensor("ffn_gate_inp_shexp.weight", _numel(moe.shared_gate.weights()))
