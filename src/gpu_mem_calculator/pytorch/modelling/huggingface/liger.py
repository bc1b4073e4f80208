"""Liger's kernels for each family (liger-kernel 0.8.5 transformers/monkey_patch.py).

As transformers' Trainer applies them: to a model that exists (`apply_liger_kernel_to_<family>` with
`model=`). A norm that Liger leaves alone there stays transformers'.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

ROPE, RMS_NORM, SWIGLU, GEGLU = "rope", "rms_norm", "swiglu", "geglu"
CROSS_ENTROPY, FUSED = "cross_entropy", "fused_linear_cross_entropy"
LAYER_NORM = "layer_norm"  # of no family that is modelled
KERNELS = (ROPE, RMS_NORM, LAYER_NORM, SWIGLU, GEGLU, CROSS_ENTROPY, FUSED)
PLAIN = "plain"  # a model given by plain numbers
# Where a norm writes the gradient of its input: into that of its output, or into a new tensor.
IN_PLACE, NEW, TORCH = "in place", "new", ""  # TORCH: it is not Liger's norm


class LigerFamily(Struct, frozen=True, kw_only=True):
    """What Liger has for a family: the kernels, those that are on by default, and its norms."""

    kernels: tuple[str, ...]
    default: tuple[str, ...]
    layer_norms: str = IN_PLACE
    head_norm: str = IN_PLACE
    attention_norms: str = TORCH


class LigerKernels(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Liger's kernels of one run. `gate`: act(gate) · up in one kernel; norms: see `IN_PLACE`."""

    rope: bool = False
    gate: bool = False
    layer_norms: str = TORCH
    head_norm: str = TORCH
    attention_norms: str = TORCH


NO_LIGER = LigerKernels()
_BASE = (ROPE, RMS_NORM, SWIGLU, FUSED)
_ALL = (*_BASE, CROSS_ENTROPY)
_GEMMA = (ROPE, RMS_NORM, GEGLU, FUSED)
LLAMA = LigerFamily(kernels=_ALL, default=_BASE)
OLMO2 = replace(LLAMA, layer_norms=NEW)
GRANITE = (ROPE, RMS_NORM, SWIGLU, CROSS_ENTROPY)
GEMMA = LigerFamily(kernels=(*_GEMMA, CROSS_ENTROPY), default=_GEMMA)
GEMMA2 = replace(GEMMA, layer_norms=NEW, head_norm=NEW)
GLM4 = (RMS_NORM, SWIGLU, FUSED)
LIGER: dict[str, LigerFamily] = {
    "llama": LLAMA,
    # mistral's cross_entropy replaces a name that transformers 5 does not use
    "mistral": replace(LLAMA, kernels=_BASE),
    "qwen2": LLAMA,
    "qwen3": replace(LLAMA, attention_norms=IN_PLACE),
    "smollm3": LLAMA,
    "granite": LigerFamily(kernels=GRANITE, default=GRANITE),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": replace(GEMMA2, attention_norms=NEW),
    "phi3": LLAMA,
    PLAIN: LLAMA,
    "olmo2": OLMO2,
    "olmo3": OLMO2,
    "glm4": replace(GEMMA2, kernels=(*GLM4, CROSS_ENTROPY), default=GLM4),
}


def liger_kernels(family: str, names: Iterable[str]) -> LigerKernels:
    """The kernels of these names for a family, which has them."""
    chosen = frozenset(names)
    if not chosen:
        return NO_LIGER
    has = LIGER[family]
    norms = RMS_NORM in chosen
    return LigerKernels(
        rope=ROPE in chosen,
        gate=bool(chosen & {SWIGLU, GEGLU}),
        layer_norms=has.layer_norms if norms else TORCH,
        head_norm=has.head_norm if norms else TORCH,
        attention_norms=has.attention_norms if norms else TORCH,
    )
