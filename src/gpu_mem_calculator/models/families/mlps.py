"""Feed-forward blocks: gated, fused, plain, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arch.arch import Buffer, Layer
from ..arch.blocks import Linear, Mlp, Moe, Weight
from .config import Config, ConfigError


def mlp_block(
    hidden: int, ffn: int, inputs: Sequence[str], output: str, *, bias: bool = False, **rest: Any
) -> Mlp:
    """An MLP by the names of its projections: two inputs are gate and up, one is up alone."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    linears = tuple(Linear(name, embed, inner, bias) for name in inputs)
    down = Linear(output, inner, embed, bias)
    return Mlp(inputs=linears, output=down, ffn=ffn, gated=len(linears) == 2, **rest)


def gated_mlp(hidden: int, ffn: int, *, prefix: str = "", **rest: Any) -> Mlp:
    """gate, up and down projections; `prefix` is the shared expert's name in its layer."""
    inputs = (f"{prefix}gate_proj", f"{prefix}up_proj")
    return mlp_block(hidden, ffn, inputs, f"{prefix}down_proj", **rest)


def fused_mlp(
    hidden: int,
    ffn: int,
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    *,
    bias: bool = False,
    activation: str = "silu",
) -> Mlp:
    """gate and up in one projection of 2 × ffn, then down."""
    embed, both, inner = ("embed", hidden), ("ffn", 2 * ffn), ("ffn", ffn)
    inputs = (Linear(names[0], embed, both, bias),)
    output = Linear(names[1], inner, embed, bias)
    return Mlp(inputs=inputs, output=output, ffn=ffn, gated=True, activation=activation)


def plain_mlp(
    hidden: int,
    ffn: int,
    activation: str,
    names: tuple[str, str],
    *,
    bias: bool = True,
    **rest: Any,
) -> Mlp:
    """Up, activation, down."""
    up, down = names
    return mlp_block(hidden, ffn, (up,), down, bias=bias, activation=activation, **rest)


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


def router_biases(
    layers: Sequence[Layer], name: str = "gate.e_score_correction_bias"
) -> tuple[Buffer, ...]:
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
    jitter_key: str = "",
    **rest: Any,
) -> Moe:
    """Routed experts, and one shared MLP as wide as `shared_key` of them, by a config's keys.

    The numbers are the family's defaults, `shared` None where no expert is shared; `bias_key`
    switches the shared MLP's biases, `jitter_key` says how much noise is on the router's input.
    """
    activation = config.activation()
    ffn = config.size(ffn_key, default=ffn)
    num_shared = 0 if shared is None else config.count(shared_key, default=shared)
    if num_shared:
        fields = {"bias": bool(bias_key) and config.flag(bias_key), "activation": activation}
        rest["shared"] = gated_mlp(hidden, ffn * num_shared, prefix="shared_experts.", **fields)
    if jitter_key:
        rest["jitter"] = config.number(jitter_key) > 0
    num_experts = config.size(*counts, default=experts)
    chosen = config.size(*top_k_keys, default=top_k)
    return stacked_moe(hidden, num_experts, chosen, ffn, activation=activation, **rest)
