"""Norms over the hidden size, by the code that runs and by where they stand in a layer."""

from __future__ import annotations

from collections.abc import Callable

from ..arch.blocks import Norm, NormImpl

MakeNorm = Callable[[str, int], Norm]
Norms = tuple[tuple[str, Norm], ...]
PRE = (("pre", "input_layernorm"), ("pre_mlp", "post_attention_layernorm"))
POST = (("post", "post_attention_layernorm"), ("post_mlp", "post_feedforward_layernorm"))


def rms(name: str, hidden: int) -> Norm:
    """Llama's RMS norm: the weight multiplies in the activations' dtype."""
    return Norm(name, ("embed", hidden))


def rms_float(name: str, hidden: int) -> Norm:
    """An RMS norm whose weight multiplies in fp32 (Gemma)."""
    return Norm(name, ("embed", hidden), "rms_float")


def rms_product(name: str, hidden: int) -> Norm:
    """An RMS norm that multiplies in fp32 and casts in one expression (OLMo 2, gpt-oss)."""
    return Norm(name, ("embed", hidden), "rms_product")


def layer_float(name: str, hidden: int) -> Norm:
    """Cohere's layer norm, written out in fp32, without a bias."""
    return Norm(name, ("embed", hidden), "layer_float")


def layer_norm(name: str, hidden: int, *, bias: bool = True, affine: bool = True) -> Norm:
    """torch.nn.LayerNorm over the hidden size."""
    return Norm(name, ("embed", hidden), "layer", bias=bias and affine, affine=affine)


def norms_at(places: tuple[tuple[str, str], ...], hidden: int, norm: MakeNorm = rms) -> Norms:
    """A norm at each place of a layer; `places` pairs a place with the norm's name."""
    return tuple((place, norm(name, hidden)) for place, name in places)


def pre_norms(hidden: int, impl: NormImpl = "rms") -> Norms:
    """Llama's two norms, before attention and before the MLP."""
    return tuple((place, Norm(name, ("embed", hidden), impl)) for place, name in PRE)


def layer_norm_pair(hidden: int, first: str, second: str) -> Norms:
    """Layer norms with bias, before the mixer and before the MLP."""
    return norms_at((("pre", first), ("pre_mlp", second)), hidden, layer_norm)
