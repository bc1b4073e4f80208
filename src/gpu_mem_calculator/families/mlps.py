"""Feed-forward blocks: gated, fused, plain, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.arch import Buffer, Layer
from ..model.blocks import Linear, Mlp, Moe, Weight
from .config import Config, ConfigError


def gated_mlp(hidden: int, ffn: int, *, bias: bool = False, activation: str = "silu") -> Mlp:
    """gate, up and down projections."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear("gate_proj", embed, inner, bias), Linear("up_proj", embed, inner, bias)),
        output=Linear("down_proj", inner, embed, bias),
        ffn=ffn,
        gated=True,
        activation=activation,
    )


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


def plain_mlp(
    hidden: int,
    ffn: int,
    activation: str,
    *,
    up: str,
    down: str,
    bias: bool = True,
    dropout: float = 0.0,
) -> Mlp:
    """Up, activation, down."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear(up, embed, inner, bias),),
        output=Linear(down, inner, embed, bias),
        ffn=ffn,
        gated=False,
        activation=activation,
        dropout=dropout,
    )


def shared_mlp(name: str, hidden: int, ffn: int, *, bias: bool = False, activation: str) -> Mlp:
    """The expert that every token uses, under its name in the layer."""
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


def router_bias(first_moe: int, num_layers: int, num_experts: int) -> tuple[Buffer, ...]:
    """The fp32 bias per expert that steers routing and is not trained by gradient."""
    return tuple(
        Buffer(f"model.layers.{i}.mlp.gate.e_score_correction_bias", (num_experts,))
        for i in range(first_moe, num_layers)
    )


def router_biases(layers: Sequence[Layer], name: str) -> tuple[Buffer, ...]:
    """The fp32 bias per expert that steers routing, in each layer that has experts."""
    return tuple(
        Buffer(f"model.layers.{i}.mlp.{name}", (layer.mlp.num_experts,))
        for i, layer in enumerate(layers)
        if isinstance(layer.mlp, Moe)
    )


def routed_moe(
    config: Config,
    hidden: int,
    *,
    experts: int | None,
    top_k: int | None,
    ffn: int,
    shared: int | None = None,
    counts: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts"),
    top_k_keys: tuple[str, ...] = ("num_experts_per_tok",),
    ffn_key: str = "moe_intermediate_size",
    shared_key: str = "n_shared_experts",
    bias_key: str = "",
    **rest: Any,
) -> Moe:
    """Routed experts, and one shared MLP as wide as `shared_key` of them, by a config's keys.

    The numbers are the family's defaults, `shared` None where no expert is shared; `bias_key`
    switches the shared MLP's biases.
    """
    activation = config.text("hidden_act", "silu")
    ffn = config.size(ffn_key, default=ffn)
    num_shared = 0 if shared is None else config.count(shared_key, default=shared)
    bias = config.flag(bias_key, default=False) if bias_key else False
    if num_shared:
        wide = ffn * num_shared
        rest["shared"] = shared_mlp(
            "shared_experts", hidden, wide, bias=bias, activation=activation
        )
    num_experts = config.size(*counts, default=experts)
    chosen = config.size(*top_k_keys, default=top_k)
    return stacked_moe(hidden, num_experts, chosen, ffn, activation=activation, **rest)
