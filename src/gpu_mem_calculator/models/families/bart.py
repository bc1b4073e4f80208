"""BART and the families like it, and Whisper: an encoder, and a decoder that reads it.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Weight
from .attention import separate_attention
from .config import Config
from .mlps import plain_mlp
from .norms import layer_norm, norms_at

STACKS = ("encoder", "decoder")
Weights = tuple[Weight, ...]


class BartVariant(Struct, frozen=True):
    """How a family differs from BART; sizes are its defaults in transformers 5.17."""

    vocab: int = 50265
    hidden: int = 1024
    ffn: int = 4096
    layers: int = 12
    heads: int = 16
    positions: int = 1024  # of text
    position_rows: int | None = 2  # more than positions; None: the positions are not learnt
    embedding_norm: bool = False
    final_norm: bool = True
    key_bias: bool = True
    words: str = "model.shared"


FRAMES = {
    "bart": BartVariant(embedding_norm=True, final_norm=False),
    "mbart": BartVariant(embedding_norm=True),
    "pegasus": BartVariant(position_rows=0),
    "marian": BartVariant(vocab=58101, position_rows=0, final_norm=False),
    "m2m_100": BartVariant(vocab=128112, position_rows=None),
}
WHISPER = BartVariant(
    *(51865, 384, 1536, 4, 6, 448),
    position_rows=0,
    key_bias=False,
    words="model.decoder.embed_tokens",
)


def _attention(config: Config, frame: BartVariant, hidden: int, stack: str) -> Attention:
    heads = config.size(f"{stack}_attention_heads", default=frame.heads)
    size = config.divided(hidden, f"{stack} attention heads", heads)
    attention = separate_attention(hidden, heads, heads, size, bias=True, output="out_proj")
    q, k, v = attention.inputs
    return replace(attention, inputs=(q, Linear(k.name, k.ins, k.outs, frame.key_bias), v))


def _layer(config: Config, frame: BartVariant, hidden: int, stack: str) -> Layer:
    """One layer; the decoder's have a second attention, on the encoder."""
    attention = _attention(config, frame, hidden, stack)
    ffn = config.size(f"{stack}_ffn_dim", default=frame.ffn)
    activation = config.text("activation_function", "gelu")
    places = [("after", "self_attn_layer_norm"), ("after_mlp", "final_layer_norm")]
    beside: tuple[tuple[str, Attention], ...] = ()
    if stack == "decoder":
        beside = (("encoder_attn", replace(attention, cross=True)),)
        places.insert(1, ("after_cross", "encoder_attn_layer_norm"))
    return Layer(
        kind=stack,
        mixer=attention,
        beside=beside,
        mlp=plain_mlp(hidden, ffn, activation, ("fc1", "fc2")),
        mlp_name="",
        norms=norms_at(tuple(places), hidden, layer_norm),
    )


def _tables(config: Config, frame: BartVariant, hidden: int, rows: dict[str, int]) -> list[Weight]:
    """Positions and the norms after them, for each stack."""
    tables: list[Weight] = []
    for stack in STACKS:
        if frame.position_rows is not None:
            dims = (("position", rows[stack] + frame.position_rows), ("embed", hidden))
            tables.append(Weight(f"model.{stack}.embed_positions.weight", dims))
        if frame.embedding_norm:
            tables += layer_norm(f"model.{stack}.layernorm_embedding", hidden).weights()
    return tables


def two_stacks(
    config: Config, family: str, frame: BartVariant, rows: dict[str, int], more: Weights = ()
) -> Arch:
    """Both stacks, one embedding for both, the head tied to it."""
    hidden = config.size("d_model", "hidden_size", default=frame.hidden)
    vocab = config.vocab(frame.vocab)
    counts = {stack: config.size(f"{stack}_layers", default=frame.layers) for stack in STACKS}
    by_stack = {stack: _layer(config, frame, hidden, stack) for stack in STACKS}
    tied = config.flag("tie_word_embeddings", default=True)
    embed, words = ("embed", hidden), ("vocab", vocab)
    final = {stack: layer_norm(f"model.{stack}.layer_norm", hidden) for stack in STACKS}
    return Arch(
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=rows["decoder"],
        encoder_len=rows["encoder"],
        layers=tuple(by_stack[stack] for stack in STACKS for _ in range(counts[stack])),
        layer_names=tuple(f"model.{s}.layers.{i}" for s in STACKS for i in range(counts[s])),
        embedding=(
            *more,
            Weight(f"{frame.words}.weight", (words, embed)),
            *_tables(config, frame, hidden, rows),
            *(final["encoder"].weights() if frame.final_norm else ()),
        ),
        final_norm=final["decoder"] if frame.final_norm else None,
        head=None if tied else Linear("lm_head", embed, words),
        tied=tied,
        trains=False,
    )


def read_bart(family: str, config: Config) -> Arch:
    """BART, mBART, Pegasus, Marian, M2M-100 and NLLB (transformers 5.17)."""
    frame = FRAMES[family]
    rows = config.size("max_position_embeddings", default=frame.positions)
    return two_stacks(config, family, frame, dict.fromkeys(STACKS, rows))


def read_whisper(config: Config) -> Arch:
    """Whisper (transformers 5.17 models/whisper): two convolutions before the encoder."""
    hidden = config.size("d_model", "hidden_size", default=WHISPER.hidden)
    bins = config.size("num_mel_bins", default=80)
    rows = {
        "encoder": config.size("max_source_positions", default=1500),
        "decoder": config.size("max_target_positions", default=448),
    }
    embed = ("embed", hidden)
    convs = tuple(
        weight
        for name, ins in (("conv1", bins), ("conv2", hidden))
        for weight in (
            Weight(f"model.encoder.{name}.weight", (embed, ("conv_in", ins), ("conv", 3))),
            Weight(f"model.encoder.{name}.bias", (embed,)),
        )
    )
    return two_stacks(config, "whisper", WHISPER, rows, convs)


FAMILIES = {family: partial(read_bart, family) for family in FRAMES} | {"whisper": read_whisper}
