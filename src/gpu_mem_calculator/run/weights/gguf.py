"""A model as a GGUF file: its tensors by llama.cpp's names, without types, then with.

llama.cpp b10586 (b21e4de7): conversion/*.py and gguf-py/gguf/tensor_mapping.py for the names and
for what stays F32, src/llama-quant.cpp for the rest. Published files may use other mixes; a
file's header takes precedence if it was read.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.remember import remembered
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
from . import gguf_types
from .ggml_types import ggml_bytes


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


def layer_tensors(
    arch: Arch, layer: Layer, index: int, build: int = gguf_types.NEWEST
) -> Iterator[UntypedTensor]:
    """Tensors of one layer, with names relative to the block."""
    mlp = layer.mlp
    for mixer in layer.mixers:
        if isinstance(mixer, LatentAttention):
            yield from _latent_tensors(mixer, unpacked=build < gguf_types.LATENT)
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
        if isinstance(mixer, Attention) and not mixer.borrowed:
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


def _latent_tensors(mixer: LatentAttention, *, unpacked: bool) -> Iterator[UntypedTensor]:
    """kv_b is split into keys and values, the keys transposed: rows of one head's size; it is one
    matrix in files of before.
    """
    names = ("attn_q_a", "attn_q_b") if len(mixer.query) == 2 else ("attn_q",)
    for name, linear in zip(names, mixer.query, strict=True):
        yield from _linear_tensors(name, linear, name if name == "attn_q" else "other")
    yield from _linear_tensors("attn_kv_a_mqa", mixer.kv_a)
    rank, heads = mixer.kv_rank, mixer.heads
    keys, values = heads * mixer.nope_dim * rank, heads * mixer.value_dim * rank
    if unpacked:
        yield UntypedTensor("attn_kv_b.weight", keys + values, rank, "other")
    else:
        yield UntypedTensor("attn_k_b.weight", keys, mixer.nope_dim, "other", cube=True)
        yield UntypedTensor("attn_v_b.weight", values, rank, "other", cube=True)
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


# DBRX's matrices of all experts have two dimensions (convert_hf_to_gguf.py DbrxModel).
DBRX_EXPERTS = {"w1": ("ffn_gate",), "v1": ("ffn_up",), "w2": ("ffn_down",)}


def _expert_tensors(moe: Moe) -> Iterator[UntypedTensor]:
    """One tensor for each matrix of all experts, gate and up separate; the router stays F32."""
    for weight in moe.router:
        yield UntypedTensor(f"ffn_gate_inp.{weight.name.rpartition('.')[2]}", weight.numel)
    for weight in moe.experts:
        sizes, short = dict(weight.dims), weight.name.rpartition(".")[2]
        down = "down" in short or short == "w2"
        halves = ("ffn_down",) if down else ("ffn_gate", "ffn_up") if moe.gated else ("ffn_up",)
        halves = DBRX_EXPERTS.get(short, halves)
        each = weight.numel // len(halves)
        for name in halves:
            if "expert" in sizes and len(sizes) == 2:
                yield UntypedTensor(f"{name}_exps.bias", each)
            else:
                experts = 1 if "expert" in sizes else moe.num_experts
                row = sizes["expert_ffn"] // experts if down else sizes["embed"]
                yield UntypedTensor(f"{name}_exps.weight", each, row, name, cube=True)
    if moe.shared is not None:
        yield from _feed_forward_tensors(moe.shared, "_shexp")
    if moe.shared_gate is not None:
        yield UntypedTensor("ffn_gate_inp_shexp.weight", _numel(moe.shared_gate.weights()))


# Families that no converter of llama.cpp reads, or whose files are not modelled.
UNREAD = "bart bert gpt_neo gptj m2m_100 marian mbart mllama mt5 opt pegasus t5 whisper zamba2"
GPT_OSS_EXPERTS = "MXFP4"  # the type of gpt-oss's experts in every file type


class GgufTensor(Struct, frozen=True):
    """One tensor of a file.

    - `name`: llama.cpp's name; `layer`: -1 before the layers, the number of layers after them
    - `kind`: ggml's type; `elements`, `bytes`: its size
    """

    name: str
    layer: int
    kind: str
    elements: int
    bytes: int


def file_type(name: str) -> str | None:
    """The file type that a name means, in upper or lower case; None if it is not one."""
    key = name.upper().replace("-", "_").removeprefix("GGUF_").removesuffix(".GGUF")
    key = gguf_types.ALIASES.get(key, key)
    return key if key in gguf_types.FILE_TYPES else None


def problem(arch: Arch) -> str:
    """Why a model has no modelled GGUF form; empty if it has one."""
    if arch.family in UNREAD.split():
        return f"a {arch.family} model has no GGUF form that is modelled; use another engine"
    return ""


@remembered(32, always=True)
def tensors(
    arch: Arch, ftype: str, imatrix: bool | None = None, build: int = gguf_types.NEWEST
) -> tuple[GgufTensor, ...]:
    """Every tensor of a file, layer by layer.

    - `imatrix`: quantized with an importance matrix; by default only if the type needs one
    - `build`: the build of llama.cpp that quantized it
    """
    untyped = [(-1, tensor) for tensor in embedding_tensors(arch)]
    for index, layer in enumerate(arch.layers):
        untyped += [(index, tensor) for tensor in layer_tensors(arch, layer, index, build)]
    untyped += [(len(arch.layers), tensor) for tensor in head_tensors(arch)]
    if imatrix is None:
        imatrix = ftype in gguf_types.NEEDS_IMATRIX
    values = sum(gguf_types.is_value(tensor.category, build) for _, tensor in untyped)
    model = _gguf_model(arch, values, imatrix, build)
    counts: dict[str, int] = {}
    return tuple(
        _typed_tensor(arch, ftype, index, tensor, model, counts) for index, tensor in untyped
    )


def _typed_tensor(
    arch: Arch,
    ftype: str,
    layer: int,
    untyped: UntypedTensor,
    model: gguf_types.GgufModel,
    counts: dict[str, int],
) -> GgufTensor:
    in_layer = 0 <= layer < len(arch.layers)
    name = f"blk.{layer}.{untyped.name}" if in_layer else untyped.name
    if not untyped.category:
        kind = "F32"
    elif untyped.cube and arch.family == "gpt_oss":
        kind = GPT_OSS_EXPERTS
    else:
        earlier = counts.get(untyped.category, 0)
        counts[untyped.category] = earlier + 1
        place = (untyped.category, layer, earlier)
        info = gguf_types.GgufTensorInfo(*place, untyped.row, untyped.cube)
        kind = gguf_types.tensor_type(ftype, info, model)
    return GgufTensor(name, layer, kind, untyped.elements, ggml_bytes(kind, untyped.elements))


def _gguf_model(arch: Arch, values: int, imatrix: bool, build: int) -> gguf_types.GgufModel:
    mixers = (layer.mixer for layer in arch.layers)
    mixer = next((mixer for mixer in mixers if isinstance(mixer, Attention)), None)
    mlps = (layer.mlp for layer, _, _ in arch.runs)
    experts = max((mlp.num_experts for mlp in mlps if isinstance(mlp, Moe)), default=0)
    queries = mixer.heads // mixer.kv_heads if mixer else 1
    grouped = queries > 1 or arch.family == "qwen2"
    known = arch.family in ("llama", "mistral", "plain", "qwen2")
    return gguf_types.GgufModel(
        falcon=arch.family == "falcon",
        queries=queries,
        experts=experts,
        values=values,
        seventy=known and grouped and len(arch.layers) == 80 and experts != 8,
        # glm4_moe files have the multi-token-prediction layer; it is counted but not loaded
        layers=len(arch.layers) + (arch.family == "glm4_moe" and arch.mtp_parameters > 0),
        tied=arch.head is None,
        imatrix=imatrix,
        build=build,
    )
