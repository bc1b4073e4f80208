"""Llama, and the dense families that are Llama with other numbers (transformers 5.17)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..arch.arch import Buffer, Layer
from ..arch.blocks import Norm, Weight
from .config import Config, ConfigError, Fields
from .llama_like import ATTENTION_ONLY, MLP, NEVER, NO_BIASES, Counts, LlamaLike, readers
from .norms import POST, layer_norm
from .windows import Windows, patterned, same, typed

PLAIN = ("up_proj", "down_proj")


def granite_frame(config: Config, hidden: int) -> Fields:
    """Granite divides its logits by `logits_scaling`."""
    scaling = config.number("logits_scaling", default=1.0)
    if not scaling:
        raise ConfigError("model.config.logits_scaling=0 must not be zero; try 1")
    return {"logit_scale": 1 / scaling}


def smollm3_rotates(config: Config, windows: Windows, layers: int) -> list[bool]:
    """`no_rope_layers`, which is 1 where a layer has rotary; else all but every fourth."""
    every = config.size("no_rope_layer_interval", default=4)
    usual = [int((i + 1) % every != 0) for i in range(layers)]
    return [bool(flag) for flag in config.per_layer("no_rope_layers", layers, usual)]


def smollm3_windows(config: Config, layers: int) -> Windows:
    """Layers slide only under `use_sliding_window`, and then those without rotary."""
    window = config.nullable("sliding_window", None)
    if not config.flag("use_sliding_window"):
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
    if not config.flag("qk_layernorm"):
        return {}
    pairs = {"q_layernorm": counts[0], "k_layernorm": counts[1]}
    names = (f"{name}.norms.{i}" for name, count in pairs.items() for i in range(count))
    return {"extra": tuple(Weight(f"{n}.weight", (("head_dim", counts[2]),)) for n in names)}


def xielu_buffers(config: Config, layers: Sequence[Layer]) -> tuple[Buffer, ...]:
    """Two fixed numbers of Apertus's activation, in each layer."""
    prefixes = (f"model.layers.{i}.mlp.act_fn" for i in range(len(layers)))
    return tuple(Buffer(f"{p}.{name}", ()) for p in prefixes for name in ("beta", "eps"))


def bare_norm(name: str, hidden: int) -> Norm:
    """OLMo 1's layer norm on an fp32 copy, which has neither a weight nor a bias."""
    return Norm(name, ("embed", hidden), "layer_wide", affine=False)


QK_NORMS = ("q_norm", "k_norm")
RELU2: Fields = {"mlp_names": PLAIN, "activation": "relu2"}
# Sizes: hidden, ffn, layers, heads, key-value heads, vocabulary, positions.
MISTRAL = LlamaLike(4096, 14336, 32, 32, 8, 32000, 131072, biases=NO_BIASES, windows=same(4096))
LLAMA = LlamaLike(4096, 11008, 32, 32, None, 32000, 2048)
STARCODER2 = LlamaLike(
    *(3072, 12288, 30, 24, 2, 49152, 4096),
    tied=True,
    biases=(("use_bias", True),) * 3,
    mlp_names=("c_fc", "c_proj"),
    norm=layer_norm,
    activation="gelu_pytorch_tanh",
    windows=same(None),
    residual_dropout=("residual_dropout", 0.0),
    mlp_dropout=("residual_dropout", 0.0),
    frame=lambda config, _: {"embedding_dropout": config.number("embedding_dropout")},
)
STABLELM = LlamaLike(
    *(2560, 6912, 32, 32, 32, 50304, 4096),
    biases=(("use_qkv_bias", False), NEVER, NEVER),
    norm=layer_norm,
    rotary=0.25,
    attention=stablelm_attention,
    parallel=("use_parallel_residual", False),
    mlp_dropout=("hidden_dropout", 0.0),
    # the norms of `qk_layernorm` run head by head, which the activations do not cover
    frame=lambda config, _: {"trains": not config.flag("qk_layernorm")},
)
SMOLLM3 = LlamaLike(
    *(2048, 11008, 36, 16, 4, 128256, 32768),
    tied=True,
    windows=smollm3_windows,
    rotates=smollm3_rotates,
)
SEED_OSS = LlamaLike(
    *(4096, 27648, 64, 80, 8, 155136, 524288),
    head_dim=128,
    biases=(("attention_bias", True), ("attention_out_bias", False), MLP),
    attention_dropout=0.1,
    residual_dropout=("residual_dropout", 0.1),
    mlp_dropout=("residual_dropout", 0.1),
)
EXAONE4 = LlamaLike(
    *(4096, 16384, 32, 32, 32, 102400, 2048),
    biases=NO_BIASES,
    qk_norms=QK_NORMS,
    norms=POST,
    windows=exaone4_windows,
    rotates=exaone4_rotates,
)
APERTUS = LlamaLike(
    *(4096, 14336, 32, 32, None, 131072, 65536),
    biases=ATTENTION_ONLY,
    qk_norms=QK_NORMS,
    mlp_names=PLAIN,
    activation="xielu",
    norms=(("pre", "attention_layernorm"), ("pre_mlp", "feedforward_layernorm")),
    extra=("mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n"),
    buffers=xielu_buffers,
)
JAIS2 = LlamaLike(
    *(3328, 26624, 32, 26, None, 150272, 8192),
    head_dim=128,
    biases=(("attention_bias", True), ("attention_bias", True), ("mlp_bias", True)),
    norm=layer_norm,
    **RELU2,
)
ERNIE4_5 = LlamaLike(
    *(1024, 3072, 18, 16, 2, 103424, 131072),
    head_dim=128,
    tied=True,
    biases=(("use_bias", False),) * 3,
    rotary_impl="ernie",
)
HUNYUAN = replace(
    LLAMA, vocab=290943, biases=ATTENTION_ONLY, qk_norms=("query_layernorm", "key_layernorm")
)
FAMILIES = readers(
    {
        "llama": LLAMA,
        "mistral": MISTRAL,
        "ministral": replace(MISTRAL, windows=typed(4096)),
        "ministral3": replace(
            MISTRAL, layers=34, head_dim=128, vocab=131072, max_seq_len=262144, windows=same(None)
        ),
        "granite": replace(LLAMA, frame=granite_frame),
        "starcoder2": STARCODER2,
        "stablelm": STABLELM,
        "olmo": replace(LLAMA, vocab=50304, biases=ATTENTION_ONLY, norm=bare_norm),
        "smollm3": SMOLLM3,
        "seed_oss": SEED_OSS,
        "hunyuan_v1_dense": HUNYUAN,
        "exaone4": EXAONE4,
        "apertus": APERTUS,
        "arcee": LlamaLike(2560, 18432, 32, 32, None, 32000, 4096, **RELU2),
        "nemotron": LlamaLike(
            6144, 24576, 32, 48, None, 256000, 4096, rotary=0.5, norm=layer_norm, **RELU2
        ),
        "jais2": JAIS2,
        "ernie4_5": ERNIE4_5,
    }
)
