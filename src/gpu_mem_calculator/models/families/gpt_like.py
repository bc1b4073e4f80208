"""GPT-2 and the decoders between it and Llama: a family is a row of names and sizes, read here.

BLOOM and MPT (ALiBi), GPT-Neo (global and local attention in turn), GPT-J (interleaved rotary,
one norm for two parallel branches), StarCoder 1 (one key-value head); transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..arch.arch import Arch, Buffer, Layer
from ..arch.blocks import Attention, Mlp
from .attention import fused_attention, separate_attention
from .config import Config, ConfigError, Fields
from .frame import biased_head, decoder, decoder_layer, layer_buffers, learned_positions
from .llama_like import NEVER, Switch, no_fields, switched
from .mlps import plain_mlp
from .norms import layer_norm

Key = tuple[tuple[str, ...], int]  # the names of a size in a config.json, and its default
Rates = tuple[float, float, float]  # dropout of attention, of each branch, of the embedding
Block = TypeVar("Block", Attention, Mlp)
KINDS = ("global", "local")
EAGER = {"sdpa": False}  # transformers has no other attention for them
WIDE_SCORES = {"sdpa": False, "float_scores": True, "float_softmax": False}


class GptLike(Struct, frozen=True):
    """A family's default sizes under its own keys, and the names of its parts."""

    hidden: Key
    layers: Key
    heads: Key
    length: Key  # positions at most
    vocab: int
    rates: Callable[[Config], Rates]
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
    attention: Callable[[Config], Fields] = no_fields
    frame: Callable[[Config, int, int, int], Fields] = no_fields  # hidden, layers, length
    transposed: bool = False  # Conv1D, which stores its weight as (in, out)


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


def transposed(block: Block) -> Block:
    """The same block, its projections stored as (in, out)."""
    inputs = tuple(replace(linear, transposed=True) for linear in block.inputs)
    return replace(block, inputs=inputs, output=replace(block.output, transposed=True))


def gpt_layer(config: Config, row: GptLike, hidden: int) -> Layer:
    """One layer of a row."""
    ffn = config.size(*row.ffn, default=4 * hidden) if row.ffn else 4 * hidden
    key, dropout = row.activation_key, row.rates(config)[1]
    activation = config.text(key, row.activation) if key else row.activation
    mixer = _attention(config, row, hidden)
    mlp = plain_mlp(hidden, ffn, activation, row.mlp_names, bias=row.biases[2], dropout=dropout)
    places = zip(("pre", "pre_mlp"), row.norms, strict=False)
    return decoder_layer(
        hidden,
        transposed(mixer) if row.transposed else mixer,
        transposed(mlp) if row.transposed else mlp,
        mixer_name=row.mixer,
        mlp_name=row.mlp,
        norms=tuple((place, layer_norm(n, hidden, bias=row.norm_bias)) for place, n in places),
        parallel=len(row.norms) == 1,
    )


def read_gpt(family: str, row: GptLike, config: Config) -> Arch:
    """The model that a config.json of this family describes."""
    keys = (row.hidden, row.layers, row.length)
    hidden, layers, length = (config.size(*names, default=default) for names, default in keys)
    fields: Fields = {"vocab": row.vocab, "max_seq_len": length, "length": row.length[0]}
    fields |= {"words": row.words, "blocks": row.blocks, "tied": row.tied}
    fields["final_norm"] = layer_norm(row.final_norm, hidden, bias=row.norm_bias)
    fields["embedding_dropout"] = row.rates(config)[2]
    fields |= row.frame(config, hidden, layers, length)
    return decoder(config, family, hidden, (gpt_layer(config, row, hidden),) * layers, **fields)


def rates(
    attention: str, branch: str, embedding: str, default: float = 0.0
) -> Callable[[Config], Rates]:
    """A reader of the three dropout rates under these keys; "" means none."""

    def read(config: Config) -> Rates:
        keys = (attention, branch, embedding)
        first, second, third = (config.number(k, default=default) if k else 0.0 for k in keys)
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
            rule = 'must look like [[["global", "local"], 12]]'
            raise ConfigError(f"model.config.attention_types={types!r} {rule}") from None
    if len(kinds) != layers or not all(kind in KINDS for kind in kinds):
        gives = "more" if len(kinds) > layers else len(kinds)
        rule = f"must give 'global' or 'local' for all {layers} layers; it gives {gives}"
        raise ConfigError(f"model.config.attention_types {rule}")
    return kinds


def gpt_neo_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """Learned positions, windows on local layers, and a causal mask in every layer."""
    kinds, window = attention_kinds(config, layers), config.size("window_size", default=256)
    vocab = config.vocab(GPT_NEO.vocab)
    shape, name = (1, 1, length, length), "attn.attention.bias"
    windows = tuple(window if kind == "local" else None for kind in kinds)
    return {
        "embedding": learned_positions("transformer", vocab, length, hidden),
        "windows": windows if "local" in kinds else (),
        "buffers": layer_buffers("transformer.h", name, layers, shape, 8),
    }


def gptj_attention(config: Config) -> Fields:
    """Rotary embedding on neighbouring channels; scores are in fp32."""
    size = config.size("rotary_dim", default=64)
    return {**WIDE_SCORES, "rotary_dim": size, "rotary_impl": "gptj"}


def gptj_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """A table of positions in every layer, and a head with a bias."""
    shape = (length, config.size("rotary_dim", default=64))
    vocab = config.vocab(GPTJ.vocab)
    tied = config.flag("tie_word_embeddings", default=GPTJ.tied)
    buffers = layer_buffers("transformer.h", "attn.embed_positions", layers, shape)
    return {"buffers": buffers, **biased_head(hidden, vocab, tied=tied)}


def gpt2_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """Learned positions; its default vocabulary is StarCoder 1's, too."""
    vocab = config.vocab(GPT2.vocab)
    return {"embedding": learned_positions("transformer", vocab, length, hidden)}


def bigcode_frame(config: Config, hidden: int, layers: int, length: int) -> Fields:
    """Learned positions, and one causal mask of all of them, whatever the attention."""
    buffers = (Buffer("transformer.bias", (length, length), 8),)
    return {**gpt2_frame(config, hidden, layers, length), "buffers": buffers}


HIDDEN, LAYERS = ("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers")
HEADS, LENGTH = ("n_head", "num_attention_heads"), ("n_positions", "max_position_embeddings")
# The first four: hidden size, layers, heads and positions, under their keys.
GPT2 = GptLike(
    *((HIDDEN, 768), (LAYERS, 12), (HEADS, 12), (LENGTH, 1024)),
    vocab=50257,
    rates=rates("attn_pdrop", "resid_pdrop", "embd_pdrop", 0.1),
    fused="c_attn",
    output="c_proj",
    ffn=("n_inner",),
    activation_key="",
    attention=lambda config: {"float_softmax": False},
    frame=gpt2_frame,
    transposed=True,
)
# The GELU of BLOOM keeps nothing but its input (GeLUFunction).
BLOOM = GptLike(
    *((("n_embed", "hidden_size"), 64), (LAYERS, 2), (HEADS, 8)),
    length=(("seq_length", "max_position_embeddings"), 2048),
    vocab=250880,
    rates=rates("attention_dropout", "hidden_dropout", ""),
    words="transformer.word_embeddings",
    norms=("input_layernorm", "post_attention_layernorm"),
    mixer="self_attention",
    fused="query_key_value",
    output="dense",
    mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    activation="bloom_gelu",
    activation_key="",
    attention=lambda config: {**EAGER, "alibi": True},
    frame=bloom_frame,
)
# That code fixes the MLP at four times the hidden size and always builds the ALiBi bias.
MPT = GptLike(
    *((("d_model", "hidden_size"), 2048), (("n_layers", "num_hidden_layers"), 24)),
    *((("n_heads", "num_attention_heads"), 16), (("max_seq_len",), 2048)),
    vocab=50368,
    rates=mpt_rates,
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
    attention=mpt_attention,
)
GPT_NEO = GptLike(
    *((("hidden_size",), 2048), (("num_layers", "num_hidden_layers"), 24)),
    *((("num_heads", "num_attention_heads"), 16), (("max_position_embeddings",), 2048)),
    vocab=50257,
    rates=rates("attention_dropout", "resid_dropout", "embed_dropout"),
    mixer="attn.attention",
    biases=(False, True, True),
    ffn=("intermediate_size",),
    frame=gpt_neo_frame,
    attention=lambda config: WIDE_SCORES,
)
GPTJ = GptLike(
    *((HIDDEN, 4096), (LAYERS, 28), (HEADS, 16), (LENGTH, 2048)),
    vocab=50400,
    rates=rates("attn_pdrop", "resid_pdrop", "embd_pdrop"),
    tied=False,
    norms=("ln_1",),
    biases=(False, False, True),
    mlp_names=("fc_in", "fc_out"),
    ffn=("n_inner",),
    attention=gptj_attention,
    frame=gptj_frame,
)
BIGCODE = replace(
    GPT2,
    one_kv_head=("multi_query", True),
    activation="gelu_pytorch_tanh",
    activation_key="activation_function",
    attention=no_fields,
    frame=bigcode_frame,
    transposed=False,
)
ROWS = {"gpt2": GPT2, "bloom": BLOOM, "mpt": MPT, "gpt_neo": GPT_NEO, "gptj": GPTJ}
ROWS["gpt_bigcode"] = BIGCODE
FAMILIES = {family: partial(read_gpt, family, row) for family, row in ROWS.items()}
