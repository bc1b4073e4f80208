"""Attention blocks: head counts, rotary width, separate projections or one for all."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..arch.blocks import Attention, Linear, Norm, NormImpl
from .config import Config, ConfigError


def head_counts(
    config: Config, hidden: int, *, heads: int, kv_heads: int | None, head_dim: int | None = None
) -> tuple[int, int, int]:
    """Query heads, key-value heads and the size of one head.

    `null` key-value heads mean as many as query heads; a missing head size is hidden / heads
    unless the family has a fixed one.
    """
    heads = config.size("num_attention_heads", default=heads)
    value = config.nullable("num_key_value_heads", heads if kv_heads is None else kv_heads)
    kv_heads = heads if value is None else value
    config.divided(heads, "key-value heads", kv_heads)
    if config.get("head_dim") is None and head_dim is None:
        head_dim = config.divided(hidden, "heads", heads)
    return heads, kv_heads, config.size("head_dim", default=head_dim)


def separate_attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    output: str = "o_proj",
    bias: bool = False,
    output_bias: bool | None = None,
    **rest: Any,
) -> Attention:
    """One projection each for q, k and v; `output_bias` None is as `bias`."""
    embed, q, kv = ("embed", hidden), ("heads", heads * head_dim), ("kv_heads", kv_heads * head_dim)
    return Attention(
        inputs=tuple(
            Linear(n, embed, width, bias) for n, width in zip(names, (q, kv, kv), strict=True)
        ),
        output=Linear(output, q, embed, bias if output_bias is None else output_bias),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        **rest,
    )


def fused_attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, *, name: str, **rest: Any
) -> Attention:
    """q, k and v from one projection; `rest` as in `separate_attention`."""
    plain = separate_attention(hidden, heads, kv_heads, head_dim, **rest)
    columns = ("heads", (heads + 2 * kv_heads) * head_dim)
    fused = Linear(name, ("embed", hidden), columns, plain.inputs[0].bias)
    return replace(plain, inputs=(fused,))


def head_norms(names: tuple[str, str], head_dim: int, impl: NormImpl = "rms") -> tuple[Norm, ...]:
    """Norms over each query and key head; `layer` ones have a bias."""
    return tuple(Norm(n, ("head_dim", head_dim), impl, bias=impl == "layer") for n in names)


def partial_rotary(config: Config, head_dim: int, default: float) -> int:
    """int(head_dim × partial_rotary_factor), up to even: frequencies are arange(0, dim, 2).

    transformers 5.17 compute_default_rope_parameters of each family.
    """
    factor = None
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if rope is not None and not isinstance(rope, dict):
            raise ConfigError(f"model.config.{name}={rope!r} must be an object or null")
        if rope and factor is None:
            factor = rope.get("partial_rotary_factor")
    source = config if factor is None else Config({"partial_rotary_factor": factor})
    share = source.number("partial_rotary_factor", default=default)
    if not 0 < share <= 1:
        raise ConfigError(
            f"model.config.partial_rotary_factor={share} must be above 0 and at most 1"
        )
    rotary_dim = int(head_dim * share)
    return rotary_dim + rotary_dim % 2


def whole_norms(
    config: Config, counts: tuple[int, int, int], impl: NormImpl = "rms"
) -> dict[str, Any]:
    """The fields of norms over all heads of q and all of k (OLMo 2, MiniMax-M2)."""
    heads, kv_heads, size = counts
    q, k = ("heads", heads * size), ("kv_heads", kv_heads * size)
    return {"norms": (Norm("q_norm", q, impl), Norm("k_norm", k, impl))}
