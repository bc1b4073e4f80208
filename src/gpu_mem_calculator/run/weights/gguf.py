"""A model as a GGUF file: its tensors by llama.cpp's names, each with its type and bytes.

llama.cpp b10586 (b21e4de7): conversion/*.py and gguf-py/gguf/tensor_mapping.py for the names and
for what stays F32, src/llama-quant.cpp for the rest. Published files may use other mixes; a
file's header takes precedence if it was read.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, Moe
from . import gguf_types
from .ggml_types import ggml_bytes
from .gguf_tensors import UntypedTensor, embedding_tensors, head_tensors, layer_tensors

# Families that no converter of llama.cpp reads, or whose files are not modelled.
UNREAD = frozenset(
    {
        "bart",
        "bert",
        "gpt_neo",
        "gptj",
        "m2m_100",
        "marian",
        "mbart",
        "mllama",
        "mt5",
        "opt",
        "pegasus",
        "t5",
        "whisper",
        "zamba2",
    }
)
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
    if arch.family in UNREAD:
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
        untyped += [(index, tensor) for tensor in layer_tensors(arch, layer, index)]
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
