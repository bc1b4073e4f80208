"""Llama, and the dense families that are Llama with other numbers (transformers 5.17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..model.arch import Buffer, Layer
from ..model.blocks import Norm, Weight
from .config import Config, ConfigError
from .llama_like import (
    ATTENTION,
    MLP,
    NEVER,
    NO_BIASES,
    Counts,
    Fields,
    LlamaLike,
    Windows,
    readers,
)
from .norms import POST, layer_norm
from .windows import patterned, same, typed

PLAIN = ("up_proj", "down_proj")
ATTENTION_ONLY = (ATTENTION, ATTENTION, NEVER)


def granite_frame(config: Config, hidden: int) -> Fields:
    """Granite divides its logits by `logits_scaling`."""
    scaling = config.number("logits_scaling", default=1.0)
    if not scaling:
        raise ConfigError("model.config.logits_scaling=0 must not be zero; try 1")
    return {"logit_scale": 1 / scaling}


def starcoder2_frame(config: Config, hidden: int) -> Fields:
    """StarCoder 2 drops out its embeddings."""
    return {"embedding_dropout": config.number("embedding_dropout")}


def smollm3_rotates(config: Config, windows: Windows, layers: int) -> list[bool]:
    """`no_rope_layers`, which is 1 where a layer has rotary; else all but every fourth."""
    every = config.size("no_rope_layer_interval", default=4)
    usual = [int((i + 1) % every != 0) for i in range(layers)]
    return [bool(flag) for flag in config.per_layer("no_rope_layers", layers, usual)]


def smollm3_windows(config: Config, layers: int) -> Windows:
    """Layers slide only under `use_sliding_window`, and then those without rotary."""
    window = config.nullable("sliding_window", None)
    if not config.flag("use_sliding_window", default=False):
        window = None
    rotates = smollm3_rotates(config, (), layers)
    return patterned(config, layers, window, lambda i: not rotates[i])


def exaone4_windows(config: Config, layers: int) -> Windows:
    """All but every `sliding_window_pattern`-th layer slide."""
    key = "sliding_window_pattern"
    every = 4 if config.get(key) == "LLLG" else config.size(key, default=4)
    window = config.nullable("sliding_window", 4096) or None
    return patterned(config, layers, window, lambda i: (i + 1) % every != 0)


def exaone4_rotates(config: Config, windows: Windows, layers: int) -> list[bool]:
    """Rotary embedding in the layers that slide; in all where there is no window."""
    if config.nullable("sliding_window", 4096) is None:
        return [True] * layers
    return [window is not None for window in windows or (None,) * layers]


def stablelm_attention(config: Config, counts: Counts) -> Fields:
    """`qk_layernorm`: a norm for each head of q and of k."""
    if not config.flag("qk_layernorm", default=False):
        return {}
    pairs = {"q_layernorm": counts[0], "k_layernorm": counts[1]}
    return {
        "extra": tuple(
            Weight(f"{name}.norms.{i}.weight", (("head_dim", counts[2]),))
            for name, count in pairs.items()
            for i in range(count)
        )
    }


def stablelm_frame(config: Config, hidden: int) -> Fields:
    """The norms of `qk_layernorm` run head by head, which the activations do not cover."""
    return {"trains": not config.flag("qk_layernorm", default=False)}


def xielu_buffers(config: Config, layers: Sequence[Layer]) -> tuple[Buffer, ...]:
    """Two fixed numbers of Apertus's activation, in each layer."""
    return tuple(
        Buffer(f"model.layers.{i}.mlp.act_fn.{name}", ())
        for i in range(len(layers))
        for name in ("beta", "eps")
    )


def bare_norm(name: str, hidden: int) -> Norm:
    """OLMo 1's layer norm on an fp32 copy, which has neither a weight nor a bias."""
    return Norm(name, ("embed", hidden), "layer_wide", affine=False)


SIZES: dict[str, Any] = {"hidden": 4096, "layers": 32, "heads": 32}
MISTRAL = LlamaLike(
    **SIZES,
    ffn=14336,
    kv_heads=8,
    vocab=32000,
    max_seq_len=131072,
    biases=NO_BIASES,
    windows=same(4096),
)
LLAMA = LlamaLike(**SIZES, ffn=11008, kv_heads=None, vocab=32000, max_seq_len=2048)
ROWS = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "ministral": replace(MISTRAL, windows=typed(4096)),
    "ministral3": replace(
        MISTRAL, layers=34, head_dim=128, vocab=131072, max_seq_len=262144, windows=same(None)
    ),
    "granite": replace(LLAMA, frame=granite_frame),
    "starcoder2": LlamaLike(
        hidden=3072,
        ffn=12288,
        layers=30,
        heads=24,
        kv_heads=2,
        vocab=49152,
        max_seq_len=4096,
        tied=True,
        biases=(("use_bias", True),) * 3,
        gated=False,
        mlp_names=("c_fc", "c_proj"),
        norm=layer_norm,
        activation="gelu_pytorch_tanh",
        windows=same(None),
        residual_dropout=("residual_dropout", 0.0),
        mlp_dropout=("residual_dropout", 0.0),
        frame=starcoder2_frame,
    ),
    "stablelm": LlamaLike(
        hidden=2560,
        ffn=6912,
        layers=32,
        heads=32,
        kv_heads=32,
        vocab=50304,
        max_seq_len=4096,
        biases=(("use_qkv_bias", False), NEVER, NEVER),
        norm=layer_norm,
        rotary=0.25,
        attention=stablelm_attention,
        parallel=("use_parallel_residual", False),
        mlp_dropout=("hidden_dropout", 0.0),
        frame=stablelm_frame,
    ),
    "olmo": replace(LLAMA, vocab=50304, biases=ATTENTION_ONLY, norm=bare_norm),
    "smollm3": LlamaLike(
        hidden=2048,
        ffn=11008,
        layers=36,
        heads=16,
        kv_heads=4,
        vocab=128256,
        max_seq_len=32768,
        tied=True,
        windows=smollm3_windows,
        rotates=smollm3_rotates,
    ),
    "seed_oss": LlamaLike(
        hidden=4096,
        ffn=27648,
        layers=64,
        heads=80,
        kv_heads=8,
        head_dim=128,
        vocab=155136,
        max_seq_len=524288,
        biases=(("attention_bias", True), ("attention_out_bias", False), MLP),
        attention_dropout=0.1,
        residual_dropout=("residual_dropout", 0.1),
        mlp_dropout=("residual_dropout", 0.1),
    ),
    "hunyuan_v1_dense": replace(
        LLAMA, vocab=290943, biases=ATTENTION_ONLY, qk_norms=("query_layernorm", "key_layernorm")
    ),
    "exaone4": LlamaLike(
        **SIZES,
        ffn=16384,
        kv_heads=32,
        vocab=102400,
        max_seq_len=2048,
        biases=NO_BIASES,
        qk_norms=("q_norm", "k_norm"),
        norms=POST,
        windows=exaone4_windows,
        rotates=exaone4_rotates,
    ),
    "apertus": LlamaLike(
        **SIZES,
        ffn=14336,
        kv_heads=None,
        vocab=131072,
        max_seq_len=65536,
        biases=ATTENTION_ONLY,
        qk_norms=("q_norm", "k_norm"),
        gated=False,
        mlp_names=PLAIN,
        activation="xielu",
        norms=(("pre", "attention_layernorm"), ("pre_mlp", "feedforward_layernorm")),
        extra=("mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n"),
        buffers=xielu_buffers,
    ),
    "arcee": LlamaLike(
        hidden=2560,
        ffn=18432,
        layers=32,
        heads=32,
        kv_heads=None,
        vocab=32000,
        max_seq_len=4096,
        gated=False,
        mlp_names=PLAIN,
        activation="relu2",
    ),
    "nemotron": LlamaLike(
        hidden=6144,
        ffn=24576,
        layers=32,
        heads=48,
        kv_heads=None,
        rotary=0.5,
        vocab=256000,
        max_seq_len=4096,
        gated=False,
        mlp_names=PLAIN,
        activation="relu2",
        norm=layer_norm,
    ),
    "jais2": LlamaLike(
        hidden=3328,
        ffn=26624,
        layers=32,
        heads=26,
        kv_heads=None,
        head_dim=128,
        vocab=150272,
        max_seq_len=8192,
        gated=False,
        mlp_names=PLAIN,
        biases=(("attention_bias", True),) * 2 + (("mlp_bias", True),),
        activation="relu2",
        norm=layer_norm,
    ),
    "ernie4_5": LlamaLike(
        hidden=1024,
        ffn=3072,
        layers=18,
        heads=16,
        kv_heads=2,
        head_dim=128,
        vocab=103424,
        max_seq_len=131072,
        tied=True,
        biases=(("use_bias", False),) * 3,
        rotary_impl="ernie",
    ),
}
FAMILIES = readers(ROWS)
