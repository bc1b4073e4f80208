"""Parts that several families share: head counts, windows, partial rotary, experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.arch import Buffer, Layer
from ..model.blocks import Linear, Mlp, Moe, Norm, Weight
from .config import Config, ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"


def nullable(config: Config, name: str, default: int | None) -> int | None:
    """A size for which `null` is a value of its own: the default only where the key is missing."""
    if name in config.data and config.data[name] is None:
        return None
    if config.get(name) is None:
        return default
    return config.size(name)


def optional_number(config: Config, name: str, default: float | None) -> float | None:
    """A number for which `null` means none."""
    if name in config.data and config.data[name] is None:
        return None
    return default if config.get(name) is None else config.number(name)


def text(config: Config, name: str, default: str) -> str:
    """A word, such as the name of an activation."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ConfigError(f"model.config.{name}={value!r} must be a string such as {default!r}")
    return value


def head_counts(
    config: Config, hidden: int, *, heads: int, kv_heads: int | None, head_dim: int | None = None
) -> tuple[int, int, int]:
    """Query heads, key-value heads and the size of one head.

    `null` key-value heads mean as many as query heads; a missing head size is hidden / heads
    unless the family has a fixed one.
    """
    heads = config.size("num_attention_heads", default=heads)
    found = nullable(config, "num_key_value_heads", heads if kv_heads is None else kv_heads)
    kv_heads = heads if found is None else found
    config.divided(heads, "key-value heads", kv_heads)
    if config.get("head_dim") is None and head_dim is None:
        head_dim = config.divided(hidden, "heads", heads)
    return heads, kv_heads, config.size("head_dim", default=head_dim)


def same_windows(config: Config, num_layers: int, default: int | None) -> tuple[int | None, ...]:
    """`sliding_window` on every layer; nothing where it is null."""
    window = nullable(config, "sliding_window", default)
    return () if window is None else (window,) * num_layers


def layer_types(config: Config, num_layers: int, default: Sequence[str]) -> tuple[str, ...]:
    """`layer_types`, one word per layer, else the family's own pattern."""
    kinds = config.get("layer_types")
    if kinds is None:
        return tuple(default)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ConfigError(f"model.config.layer_types must be a list of {num_layers} entries")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise ConfigError(
                f"model.config.layer_types holds {kind!r}; this family has {FULL} and {SLIDING}"
            )
    return tuple(kinds)


def typed_windows(types: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window on each sliding layer; nothing where no layer slides."""
    if window is None or SLIDING not in types:
        return ()
    return tuple(window if kind == SLIDING else None for kind in types)


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


def head_norms(names: tuple[str, str], head_dim: int, impl: str = "rms") -> tuple[Norm, ...]:
    """Norms over each query and key head; `layer` ones have a bias."""
    return tuple(Norm(n, ("head_dim", head_dim), impl, bias=impl == "layer") for n in names)


def fused_mlp(hidden: int, ffn: int, *, activation: str = "silu") -> Mlp:
    """gate and up in one projection of 2 × ffn, then down."""
    embed = ("embed", hidden)
    return Mlp(
        inputs=(Linear("gate_up_proj", embed, ("ffn", 2 * ffn)),),
        output=Linear("down_proj", ("ffn", ffn), embed),
        ffn=ffn,
        gated=True,
        activation=activation,
    )


def shared_mlp(name: str, hidden: int, ffn: int, *, bias: bool = False, activation: str) -> Mlp:
    """The expert that every token uses, under a name of its own."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=tuple(Linear(f"{name}.{n}", embed, inner, bias) for n in ("gate_proj", "up_proj")),
        output=Linear(f"{name}.down_proj", inner, embed, bias),
        ffn=ffn,
        gated=True,
        activation=activation,
    )


def stacked_moe(
    hidden: int, num_experts: int, top_k: int, ffn: int, *, router: str = "gate", **rest: Any
) -> Moe:
    """Experts stacked into two tensors, as transformers 5 keeps them."""
    if top_k > num_experts:
        raise ConfigError(
            f"model.config.num_experts_per_tok={top_k} is more than {num_experts} experts; "
            f"try {num_experts} or fewer"
        )
    expert, embed = ("expert", num_experts), ("embed", hidden)
    return Moe(
        router=(Weight(f"{router}.weight", (expert, embed)),),
        experts=(
            Weight("experts.gate_up_proj", (expert, ("expert_ffn", 2 * ffn), embed)),
            Weight("experts.down_proj", (expert, embed, ("expert_ffn", ffn))),
        ),
        num_experts=num_experts,
        top_k=top_k,
        ffn=ffn,
        **rest,
    )


def biased_head(hidden: int, vocab: int, *, tied: bool) -> dict[str, Any]:
    """An `lm_head` with a bias; tying shares the weight only, so the bias stays."""
    rows = ("vocab", vocab)
    if tied:
        return {"head": None, "head_extra": (Weight("lm_head.bias", (rows,)),)}
    return {"head": Linear("lm_head", ("embed", hidden), rows, bias=True)}


def mtp_parameters(config: Config, layer: Layer, hidden: int, vocab: int) -> int:
    """Weights of the multi-token-prediction modules, as checkpoints publish them.

    Each is a decoder layer, two norms over its inputs, a projection from 2 × hidden, a norm
    behind it (transformers 5.17 modeling_layers.MtpLayer), and copies of the embedding and the
    head that loading drops (MtpModel._keys_to_ignore_on_load_unexpected). A config without
    `num_nextn_predict_layers` has none published.
    """
    modules = config.count("num_nextn_predict_layers", "num_mtp_layers", default=0)
    own = layer.num_parameters + 3 * hidden + 2 * hidden * hidden
    return modules * (own + 2 * vocab * hidden)


def router_bias(first_moe: int, num_layers: int, num_experts: int) -> tuple[Buffer, ...]:
    """The fp32 bias per expert that steers routing and is not trained by gradient."""
    return tuple(
        Buffer(f"model.layers.{i}.mlp.gate.e_score_correction_bias", (num_experts,))
        for i in range(first_moe, num_layers)
    )
