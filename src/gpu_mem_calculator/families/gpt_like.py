"""The decoders between GPT-2 and Llama: a family is a row of names and sizes, read here.

BLOOM and MPT (ALiBi), GPT-Neo (global and local attention in turn), GPT-J (interleaved rotary,
one norm for two parallel branches), StarCoder 1 (one key-value head); transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Attention
from .attention import fused_attention, separate_attention
from .config import Config, ConfigError
from .frame import biased_head, layer_buffers, learned_positions, named_decoder
from .llama_like import NEVER, Fields, Switch, no_fields, switched
from .mlps import plain_mlp
from .norms import layer_norm

Key = tuple[tuple[str, ...], int]  # the names of a size in a config.json, and its default
Rates = tuple[float, float, float]  # dropout of attention, of each branch, of the embedding
KINDS = ("global", "local")
EAGER = {"sdpa": False}  # transformers has no other attention for them
WIDE_SCORES = {"sdpa": False, "float_scores": True, "float_softmax": False}


class GptLike(Struct, frozen=True, kw_only=True):
    """A family's default sizes under its own keys, and the names of its parts."""

    hidden: Key
    layers: Key
    heads: Key
    length: Key  # positions at most
    vocab: int
    tied: bool = True
    words: str = "transformer.wte"
    blocks: str = "transformer.h"
    final_norm: str = "transformer.ln_f"
    norms: tuple[str, ...] = ("ln_1", "ln_2")  # one: both branches read it
    norm_bias: bool = True
    mixer: str = "attn"
    fused: str = ""  # one projection for q, k and v; "": one for each
    output: str = "out_proj"
    biases: tuple[bool, bool, bool] = (True, True, True)  # q k v, output, MLP
    one_kv_head: Switch = NEVER
    mlp: str = "mlp"
    mlp_names: tuple[str, str] = ("c_fc", "c_proj")
    ffn: tuple[str, ...] = ()  # its keys; without one it is four times the hidden size
    activation: str = "gelu_new"
    activation_key: str = "activation_function"  # "": always the same
    rates: Callable[[Config], Rates]
    attention: Callable[[Config], Fields] = no_fields
    frame: Callable[[Config, int, int, int], Fields] = no_fields  # hidden, layers, length


def _attention(config: Config, row: GptLike, hidden: int) -> Attention:
    """The attention of a row."""
    heads = config.size(*row.heads[0], default=row.heads[1])
    kv_heads = 1 if switched(config, row.one_kv_head) else heads
    dropout, residual, _ = row.rates(config)
    rest = {"dropout": dropout, "residual_dropout": residual, **row.attention(config)}
    rest |= {"bias": row.biases[0], "output_bias": row.biases[1], "output": row.output}
    sizes = (hidden, heads, kv_heads, config.divided(hidden, "heads", heads))
    if row.fused:
        return fused_attention(*sizes, name=row.fused, **rest)
    return separate_attention(*sizes, **rest)


def gpt_layer(config: Config, row: GptLike, hidden: int) -> Layer:
    """One layer of a row."""
    ffn = config.size(*row.ffn, default=4 * hidden) if row.ffn else 4 * hidden
    key, (up, down) = row.activation_key, row.mlp_names
    activation = config.text(key, row.activation) if key else row.activation
    places = zip(("pre", "pre_mlp"), row.norms, strict=False)
    return Layer(
        kind="dense",
        mixer=_attention(config, row, hidden),
        mixer_name=row.mixer,
        mlp=plain_mlp(
            hidden,
            ffn,
            activation,
            up=up,
            down=down,
            bias=row.biases[2],
            dropout=row.rates(config)[1],
        ),
        mlp_name=row.mlp,
        norms=tuple((place, layer_norm(n, hidden, bias=row.norm_bias)) for place, n in places),
        parallel=len(row.norms) == 1,
    )


def read_gpt(family: str, row: GptLike, data: Mapping[str, Any]) -> Arch:
    """The model that a config.json of this family describes."""
    config = Config(data)
    hidden, count, length = (
        config.size(*names, default=default)
        for names, default in (row.hidden, row.layers, row.length)
    )
    return named_decoder(
        config,
        family,
        hidden,
        (gpt_layer(config, row, hidden),) * count,
        words=row.words,
        blocks=row.blocks,
        vocab=row.vocab,
        max_seq_len=length,
        tied=row.tied,
        **{
            "final_norm": layer_norm(row.final_norm, hidden, bias=row.norm_bias),
            "embedding_dropout": row.rates(config)[2],
            **row.frame(config, hidden, count, length),
        },
    )


def rates(
    attention: str, branch: str, embedding: str, default: float = 0.0
) -> Callable[[Config], Rates]:
    """A reader of the three dropout rates under these keys; "" means none."""

    def read(config: Config) -> Rates:
        first, second, third = (
            config.number(key, default=default) if key else 0.0
            for key in (attention, branch, embedding)
        )
        return first, second, third

    return read


def mpt_rates(config: Config) -> Rates:
    """Every dropout of MPT is `attn_config.attn_pdrop`; its embeddings have none."""
    rate = config.section("attn_config").number("attn_pdrop")
    return rate, rate, 0.0


def mpt_attention(config: Config) -> Fields:
    """ALiBi in fp32; `clip_qkv` clamps q, k and v."""
    clipped = bool(config.section("attn_config").get("clip_qkv"))
    return {**EAGER, "alibi": True, "float_bias": True, "clipped": clipped}


def bloom_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """BLOOM norms its embeddings."""
    return {"embedding_norm": layer_norm("transformer.word_embeddings_layernorm", hidden)}


def attention_kinds(config: Config, layers: int) -> list[str]:
    """`attention_types` written out: [[["global", "local"], 12]] is 24 layers."""
    kinds = config.per_layer("attention_layers", layers, [KINDS[i % 2] for i in range(layers)])
    types = config.get("attention_types")
    if types is not None:
        try:
            each = (k for names, times in types if names for _ in range(times) for k in names)
            kinds = list(islice(each, layers + 1))
        except (TypeError, ValueError):
            raise ConfigError(
                f'model.config.attention_types={types!r} must look like [[["global", "local"], 12]]'
            ) from None
    if len(kinds) != layers or not all(kind in KINDS for kind in kinds):
        gives = "more" if len(kinds) > layers else len(kinds)
        raise ConfigError(
            f"model.config.attention_types must give 'global' or 'local' for all {layers} layers; "
            f"it gives {gives}"
        )
    return kinds


def gpt_neo_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """Learned positions, windows on local layers, and a causal mask in every layer."""
    kinds, window = attention_kinds(config, layers), config.size("window_size", default=256)
    vocab = config.size("vocab_size", default=GPT_NEO.vocab)
    shape, name = (1, 1, length, length), "attn.attention.bias"
    return {
        "embedding": learned_positions("transformer", vocab, length, hidden),
        "windows": tuple(window if k == "local" else None for k in kinds)
        if "local" in kinds
        else (),
        "buffers": layer_buffers("transformer.h", name, layers, shape, 8),
    }


def gptj_attention(config: Config) -> Fields:
    """Rotary embedding on neighbouring channels; scores are in fp32."""
    size = config.size("rotary_dim", default=64)
    return {**WIDE_SCORES, "rotary_dim": size, "rotary_impl": "gptj"}


def gptj_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """A table of positions in every layer, and a head with a bias."""
    shape = (length, config.size("rotary_dim", default=64))
    vocab = config.size("vocab_size", default=GPTJ.vocab)
    tied = config.flag("tie_word_embeddings", default=GPTJ.tied)
    buffers = layer_buffers("transformer.h", "attn.embed_positions", layers, shape)
    return {"buffers": buffers, **biased_head(hidden, vocab, tied=tied)}


def bigcode_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """Learned positions, and one causal mask of all of them, whatever the attention."""
    vocab = config.size("vocab_size", default=BIGCODE.vocab)
    return {
        "embedding": learned_positions("transformer", vocab, length, hidden),
        "buffers": (Buffer("transformer.bias", (length, length), 8),),
    }


# The GELU of BLOOM keeps nothing but its input (GeLUFunction).
BLOOM = GptLike(
    hidden=(("n_embed", "hidden_size"), 64),
    layers=(("n_layer", "num_hidden_layers"), 2),
    heads=(("n_head", "num_attention_heads"), 8),
    vocab=250880,
    length=(("seq_length", "max_position_embeddings"), 2048),
    words="transformer.word_embeddings",
    norms=("input_layernorm", "post_attention_layernorm"),
    mixer="self_attention",
    fused="query_key_value",
    output="dense",
    mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    activation="bloom_gelu",
    activation_key="",
    rates=rates("attention_dropout", "hidden_dropout", ""),
    attention=lambda config: {**EAGER, "alibi": True},
    frame=bloom_frame,
)
# That code fixes the MLP at four times the hidden size and always builds the ALiBi bias.
MPT = GptLike(
    hidden=(("d_model", "hidden_size"), 2048),
    layers=(("n_layers", "num_hidden_layers"), 24),
    heads=(("n_heads", "num_attention_heads"), 16),
    length=(("max_seq_len",), 2048),
    vocab=50368,
    blocks="transformer.blocks",
    final_norm="transformer.norm_f",
    norms=("norm_1", "norm_2"),
    norm_bias=False,
    fused="Wqkv",
    biases=(False, False, False),
    mlp="ffn",
    mlp_names=("up_proj", "down_proj"),
    activation="gelu",
    activation_key="",
    rates=mpt_rates,
    attention=mpt_attention,
)
GPT_NEO = GptLike(
    hidden=(("hidden_size",), 2048),
    layers=(("num_layers", "num_hidden_layers"), 24),
    heads=(("num_heads", "num_attention_heads"), 16),
    vocab=50257,
    length=(("max_position_embeddings",), 2048),
    mixer="attn.attention",
    biases=(False, True, True),
    ffn=("intermediate_size",),
    frame=gpt_neo_frame,
    rates=rates("attention_dropout", "resid_dropout", "embed_dropout"),
    attention=lambda config: WIDE_SCORES,
)
GPTJ = GptLike(
    hidden=(("n_embd", "hidden_size"), 4096),
    layers=(("n_layer", "num_hidden_layers"), 28),
    heads=(("n_head", "num_attention_heads"), 16),
    vocab=50400,
    tied=False,
    norms=("ln_1",),
    length=(("n_positions", "max_position_embeddings"), 2048),
    biases=(False, False, True),
    mlp_names=("fc_in", "fc_out"),
    ffn=("n_inner",),
    attention=gptj_attention,
    frame=gptj_frame,
    rates=rates("attn_pdrop", "resid_pdrop", "embd_pdrop"),
)
BIGCODE = GptLike(
    hidden=(("n_embd", "hidden_size"), 768),
    layers=(("n_layer", "num_hidden_layers"), 12),
    heads=(("n_head", "num_attention_heads"), 12),
    vocab=50257,
    fused="c_attn",
    output="c_proj",
    length=(("n_positions", "max_position_embeddings"), 1024),
    one_kv_head=("multi_query", True),
    ffn=("n_inner",),
    activation="gelu_pytorch_tanh",
    frame=bigcode_frame,
    rates=rates("attn_pdrop", "resid_pdrop", "embd_pdrop", 0.1),
)
ROWS = {"bloom": BLOOM, "mpt": MPT, "gpt_neo": GPT_NEO, "gptj": GPTJ, "gpt_bigcode": BIGCODE}
FAMILIES = {family: partial(read_gpt, family, row) for family, row in ROWS.items()}
