"""Mistral and Mixtral: Llama with a sliding window, and with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Mlp, Moe
from .blocks import head_counts, same_windows, stacked_moe, text
from .config import Config
from .llama import decoder, gated_mlp, pre_norms, separate_attention


def _attention(config: Config, hidden: int) -> Attention:
    """q, k, v and o without biases, rotary over the whole head."""
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=8)
    return separate_attention(
        hidden, heads, kv_heads, head_dim,
        rotary_dim=head_dim, dropout=config.number("attention_dropout"),
    )  # fmt: skip


def _decoder(
    config: Config, family: str, hidden: int, mlp: Mlp | Moe, *, window: int | None
) -> Arch:
    """The stack: every layer alike, every layer under the same window."""
    attention = _attention(config, hidden)
    layer = Layer(
        kind="moe" if isinstance(mlp, Moe) else "dense",
        mixer=attention,
        mlp=mlp,
        norms=pre_norms(hidden),
    )
    num_layers = config.size("num_hidden_layers", default=32)
    return decoder(
        config, family, hidden, (layer,) * num_layers,
        vocab=32000, max_seq_len=131072, tied=False, rotary_dim=attention.head_dim,
        windows=same_windows(config, num_layers, window),
    )  # fmt: skip


def read_mistral(data: Mapping[str, Any]) -> Arch:
    """Mistral (transformers 5.17 models/mistral). A missing window is 4096, a null one none."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    ffn = config.size("intermediate_size", default=14336)
    mlp = gated_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu"))
    return _decoder(config, "mistral", hidden, mlp, window=4096)


def read_mixtral(data: Mapping[str, Any]) -> Arch:
    """Mixtral (transformers 5.17 models/mixtral): every layer has experts, none is shared."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    mlp = stacked_moe(
        hidden,
        config.size("num_local_experts", "num_experts", default=8),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size", default=14336),
        activation=text(config, "hidden_act", "silu"),
        jitter=config.number("router_jitter_noise") > 0,
        router_impl="softmax_wide",
    )
    return _decoder(config, "mixtral", hidden, mlp, window=None)


FAMILIES = {"mistral": read_mistral, "mixtral": read_mixtral}
