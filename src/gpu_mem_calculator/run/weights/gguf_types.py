"""The ggml type of each tensor when llama.cpp quantizes a model to a named file type.

llama.cpp b10586 (b21e4de7) src/llama-quant.cpp: llama_ftype_get_default_type, tensor_get_category,
llama_tensor_get_type_impl, tensor_type_fallback. Tensors are visited layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...ledger.frameworks import LLAMA_CPP
from .ggml_types import BLOCKS, UNQUANTIZED, divides

# Types of the tensors that no rule below applies to, where the file type has another name.
DEFAULT_TYPES = {"MXFP4_MOE": "MXFP4", "Q2_K_S": "Q2_K", "IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S"}
DEFAULT_TYPES |= dict.fromkeys(("Q3_K_S", "Q3_K_M", "Q3_K_L"), "Q3_K")
DEFAULT_TYPES |= {"Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K"}
DEFAULT_TYPES |= {"IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S"}
NAMES = (
    "F32 F16 BF16 Q8_0 Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 MXFP4_MOE Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L "
    "Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S "
    "IQ3_M IQ4_NL IQ4_XS TQ1_0 TQ2_0"
)
# Every file type, and the type of the tensors that no rule below applies to.
FILE_TYPES: Mapping[str, str] = {name: DEFAULT_TYPES.get(name, name) for name in NAMES.split()}
# Other names of file types (tools/quantize/quantize.cpp QUANT_OPTIONS).
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}

TINY = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
TWO_BITS = frozenset({"IQ2_S", "IQ2_M"})
# Quantizing to these is refused without an importance matrix (tensor_requires_imatrix).
NEEDS_IMATRIX = TINY | {"IQ3_XXS", "IQ3_XS", "Q2_K_S"}
# Before this build only attn_v.weight followed the rules of values, and a fused attn_qkv.weight had
# separate rules (1dab5f5a).
FUSED_AS_VALUES = 8266
LATENT = 5137  # keys and values of latent attention are separate matrices
NEWEST = LLAMA_CPP.numbers[0]

# The type of a tensor whose rows the blocks of a type do not divide.
TO_F16 = "Q1_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4"
TO_IQ4 = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS"
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
FALLBACK |= dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0")
FALLBACK |= dict.fromkeys(TO_IQ4.split(), "IQ4_NL")
FALLBACK |= dict.fromkeys(TO_F16.split(), "F16")
# File types whose fused projection, or whose attention output, has a type other than the default.
FUSED = {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "IQ3_M": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
OUTPUT = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
TINY_OUTPUT = {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S"}
# File types whose attention output is Q5_K where a layer has eight experts.
EIGHT_EXPERTS = "Q2_K IQ3_XS IQ3_XXS Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ3_M IQ4_XS"


class GgufModel(Struct, frozen=True, kw_only=True):
    """What the rules depend on in a model, and how it is quantized.

    - `falcon`: the Falcon family; `seventy`: llama.cpp's "70B": 80 layers, grouped heads
    - `queries`: query heads per key-value head; `experts`: experts of a layer, 0 without
    - `layers`: blocks of the file, multi-token prediction included
    - `values`: tensors that follow the rules of values; `tied`: the embedding is also the output
    - `imatrix`: with an importance matrix; `build`: the build of llama.cpp
    """

    falcon: bool = False
    seventy: bool = False
    queries: int = 1
    experts: int = 0
    layers: int
    values: int
    tied: bool
    imatrix: bool = False
    build: int = NEWEST


def is_value(category: str, build: int) -> bool:
    """Whether a tensor follows the rules of values."""
    return category == "attn_v" or (category == "attn_qkv" and build >= FUSED_AS_VALUES)


def gets_more_bits(place: int, count: int) -> bool:
    """Whether a tensor is in the first or last eighth, or is every third between."""
    return place < count // 8 or place >= 7 * count // 8 or (place - count // 8) % 3 == 2


class GgufTensorInfo(Struct, frozen=True):
    """What the rules depend on in a tensor that may be quantized.

    - `category`: the part of its name that llama.cpp matches; `layer`: its layer
    - `before`: how many of that category came before it
    - `row`: elements of a row; `cube`: whether it is a stack of matrices
    """

    category: str
    layer: int
    before: int
    row: int
    cube: bool = False


def tensor_type(ftype: str, tensor: GgufTensorInfo, model: GgufModel) -> str:
    """The ggml type of one tensor."""
    default = FILE_TYPES[ftype]
    if default in UNQUANTIZED:
        return default
    return fallback(_preferred_type(ftype, tensor, model), tensor.row)


def fallback(kind: str, row: int) -> str:
    """`kind`, or the nearest type whose blocks divide a row."""
    if divides(kind, row):
        return kind
    other = FALLBACK[kind]
    return other if divides(other, row) else "F16"


def _preferred_type(ftype: str, tensor: GgufTensorInfo, model: GgufModel) -> str:
    default, category = FILE_TYPES[ftype], tensor.category
    place = tensor.layer if model.experts > 1 else tensor.before
    if category == "output" or (model.tied and category == "token_embd"):
        return _output_type(ftype, tensor.row, model)
    if ftype == "MXFP4_MOE":
        return "MXFP4" if tensor.cube else "Q8_0"
    if category == "token_embd":
        return _embedding_type(ftype)
    if ftype in TINY:
        return _tiny_type(ftype, category, tensor.before, model)
    if is_value(category, model.build):
        return _value_type(ftype, tensor.before, model)
    if category in ("attn_k", "attn_q"):
        if category == "attn_k" and model.experts == 8:
            return "Q8_0"
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(ftype, default)
    if category == "ffn_down":
        return _down_type(ftype, place, model)
    if category == "attn_output":
        return _attention_output_type(ftype, model)
    if category == "attn_qkv":
        return FUSED.get(ftype, default)
    middle = model.layers // 8 <= place < 7 * model.layers // 8
    if category in ("ffn_gate", "ffn_up") and ftype == "IQ3_XS" and middle:
        return "IQ3_XXS"
    return default


def _output_type(ftype: str, row: int, model: GgufModel) -> str:
    """The output, or an embedding that is also the output."""
    default = FILE_TYPES[ftype]
    if ftype == "MXFP4_MOE" or model.falcon or row % BLOCKS[default][0]:
        return "Q8_0"
    if ftype in TINY or ftype == "IQ3_XXS":
        return "Q5_K"
    return default if default == "Q8_0" else "Q6_K"


def _embedding_type(ftype: str) -> str:
    if ftype in TWO_BITS or ftype == "IQ3_XXS":
        return "IQ3_S"
    if ftype in TINY:
        return "Q2_K"
    return "Q4_K" if ftype in ("TQ1_0", "TQ2_0", "Q2_0") else FILE_TYPES[ftype]


def _tiny_type(ftype: str, category: str, place: int, model: GgufModel) -> str:
    """File types of one and two bits."""
    better = "IQ3_S" if ftype in TWO_BITS else "Q2_K"
    if is_value(category, model.build):
        return "Q4_K" if model.queries >= 4 or model.experts >= 4 else better
    if category == "attn_k" and model.experts == 8:
        return "Q4_K"
    if category == "ffn_down" and place < model.layers // 8:
        return better
    if category == "attn_output":
        return "Q5_K" if model.experts == 8 else TINY_OUTPUT.get(ftype, FILE_TYPES[ftype])
    return FILE_TYPES[ftype]


def _value_type(ftype: str, place: int, model: GgufModel) -> str:
    """Values: small if heads are grouped, and the most sensitive to quantization."""
    grouped = model.queries >= 4
    kind = FILE_TYPES[ftype]
    if ftype == "Q2_K":
        kind = "Q4_K" if grouped else "Q3_K"
    elif ftype == "IQ3_XXS":
        kind = "Q4_K" if grouped else kind if model.imatrix else "IQ3_S"
    elif ftype == "IQ3_M" or (ftype in ("Q2_K_S", "IQ3_XS", "IQ3_S") and grouped):
        kind = "Q4_K"
    elif ftype == "Q3_K_M":
        kind = "Q5_K" if place < 2 else "Q4_K"
    elif ftype == "Q3_K_L" or (ftype in ("IQ4_NL", "IQ4_XS") and grouped):
        kind = "Q5_K"
    elif ftype in ("Q4_K_M", "Q5_K_M") and gets_more_bits(place, model.values):
        kind = "Q6_K"
    elif ftype == "Q4_K_S" and place < 4:
        kind = "Q5_K"
    if model.seventy and kind in ("Q3_K", "Q4_K"):
        kind = "Q5_K"
    return "Q8_0" if model.experts == 8 else kind


def _down_type(ftype: str, place: int, model: GgufModel) -> str:
    """The feed-forward's output matrix."""
    first, more = place < model.layers // 8, gets_more_bits(place, model.layers)
    sixteenth = place < model.layers // 16
    kind = FILE_TYPES[ftype]
    if ftype == "Q2_K":
        return "Q3_K"
    if ftype == "Q2_K_S":
        return "Q4_K" if first else kind
    if ftype == "IQ3_XXS" and not model.imatrix:
        return "Q4_K" if first else "Q3_K"
    if ftype == "Q3_K_M":
        return "Q5_K" if sixteenth else "Q4_K" if not model.falcon or more else "Q3_K"
    if ftype == "IQ3_M" and (first or (model.experts == 8 and more)):
        return "Q4_K"
    if ftype == "Q3_K_L":
        return "Q4_K" if model.falcon else "Q5_K"
    if ftype == "Q4_K_M" and model.falcon:
        return "Q6_K" if sixteenth else "Q5_K" if more else kind
    if ftype in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if more else kind
    if ftype in ("IQ4_NL", "IQ4_XS") and first and not model.imatrix:
        return "Q5_K"
    if ftype == "Q4_K_S" and first and not model.falcon:
        return "Q5_K"
    if ftype in ("Q4_0", "Q5_0") and first and model.imatrix:
        return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[ftype]
    return kind


def _attention_output_type(ftype: str, model: GgufModel) -> str:
    """Attention's output matrix."""
    kind = FILE_TYPES[ftype]
    if model.falcon:
        return "Q4_K" if ftype == "Q3_K_L" else kind
    if model.experts == 8:
        return "Q5_K" if ftype in EIGHT_EXPERTS.split() else kind
    return OUTPUT.get(ftype, kind)
