"""LoRA: which projections have an adapter, and how many parameters it adds."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .arch import Arch, Layer
from .blocks import Linear

# The projections PEFT 0.21.2 adapts when none are named (utils/constants.py), by family.
LLAMA_TARGETS: tuple[str, ...] = ("q_proj", "v_proj")
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    "gpt2": ("c_attn",),
    "bloom": ("query_key_value",),
    "gpt_neox": ("query_key_value",),
    "falcon": ("query_key_value",),
    "mpt": ("Wqkv",),
    "chatglm": ("query_key_value",),
    "phi3": ("qkv_proj",),
    "baichuan": ("W_pack",),
}


def linears(layer: Layer) -> tuple[Linear, ...]:
    """Every projection of a layer that is a separate module."""
    return layer.linears


def module_name(linear: Linear) -> str:
    """The last word of a projection's name, which is what targets are matched against."""
    return linear.name.rpartition(".")[2]


def adapted_linears(layer: Layer, targets: frozenset[str]) -> Iterator[Linear]:
    """The projections of a layer that have an adapter."""
    return (linear for linear in linears(layer) if module_name(linear) in targets)


def adapter_parameters(layer: Layer, rank: int, targets: frozenset[str], *, dora: bool) -> int:
    """Trainable elements in one layer: A is (r, in), B is (out, r); DoRA adds a magnitude."""
    return sum(
        rank * (linear.ins[1] + linear.outs[1]) + (linear.outs[1] if dora else 0)
        for linear in adapted_linears(layer, targets)
    )


def total_adapter_parameters(arch: Arch, rank: int, targets: frozenset[str], *, dora: bool) -> int:
    """Trainable elements in the whole model."""
    return sum(adapter_parameters(layer, rank, targets, dora=dora) for layer in arch.layers)


class Adapter(Struct, frozen=True):
    """LoRA as PEFT 0.21.2 runs it: y + scaling · B(A(dropout(x))).

    `bits`: of its weights; `initial_bits`: of those before they are cast.
    """

    rank: int
    targets: frozenset[str]
    bits: int = 32
    dropout: float = 0.0
    dora: bool = False
    initial_bits: int = 0
