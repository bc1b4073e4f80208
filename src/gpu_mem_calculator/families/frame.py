"""What stands around the layers of a decoder: embedding, final norm, head, buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Linear, Norm, Weight
from .config import Config


def decoder(
    config: Config,
    family: str,
    hidden: int,
    layers: tuple[Layer, ...],
    *,
    vocab: int,
    max_seq_len: int,
    tied: bool,
    rotary_dim: int,
    norm_impl: str = "rms",
    **rest: Any,
) -> Arch:
    """The model around a stack, under the names that Llama gives its parts."""
    values: dict[str, Any] = {
        "final_norm": Norm("model.norm", ("embed", hidden), norm_impl),
        "buffers": rotary_buffer(rotary_dim),
    }
    length = config.size("max_position_embeddings", default=max_seq_len)
    return named_decoder(
        config,
        family,
        hidden,
        layers,
        vocab=vocab,
        max_seq_len=length,
        tied=tied,
        words="model.embed_tokens",
        blocks="model.layers",
        **values | rest,
    )


def named_decoder(
    config: Config,
    family: str,
    hidden: int,
    layers: tuple[Layer, ...],
    *,
    words: str,
    blocks: str,
    final_norm: Norm | None,
    vocab: int,
    max_seq_len: int,
    tied: bool,
    **rest: Any,
) -> Arch:
    """The model around a stack; the family names its embedding, its layers and its norm."""
    vocab = config.size("vocab_size", default=vocab)
    tied = config.flag("tie_word_embeddings", default=tied)
    embed, rows = ("embed", hidden), ("vocab", vocab)
    values: dict[str, Any] = {
        "embedding": (Weight(f"{words}.weight", (rows, embed)),),
        "head": None if tied else Linear("lm_head", embed, rows),
    }
    return Arch(
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=max_seq_len,
        layers=layers,
        layer_prefix=blocks,
        final_norm=final_norm,
        tied=tied,
        **values | rest,
    )


def rotary_buffer(
    rotary_dim: int, copies: int = 1, name: str = "model.rotary_emb"
) -> tuple[Buffer, ...]:
    """The rotary frequencies; transformers keeps the original ones beside them."""
    names = ("inv_freq", "original_inv_freq")
    return tuple(
        Buffer(f"{name}.{n}{i or ''}", (rotary_dim // 2,)) for i in range(copies) for n in names
    )


def typed_rotary_buffer(types: Sequence[str], rotary_dim: int) -> tuple[Buffer, ...]:
    """One set of rotary frequencies for each kind of layer (Gemma 3, OLMo 3)."""
    return tuple(
        Buffer(f"model.rotary_emb.{kind}_{name}", (rotary_dim // 2,))
        for kind in sorted(set(types))
        for name in ("inv_freq", "original_inv_freq")
    )


def layer_buffers(
    prefix: str, name: str, layers: int, shape: tuple[int, ...], bits: int = 32
) -> tuple[Buffer, ...]:
    """The same buffer in every layer."""
    return tuple(Buffer(f"{prefix}.{i}.{name}", shape, bits) for i in range(layers))


def learned_positions(prefix: str, vocab: int, positions: int, hidden: int) -> tuple[Weight, ...]:
    """GPT-2's two tables, `wte` of words and `wpe` of positions."""
    embed = ("embed", hidden)
    return (
        Weight(f"{prefix}.wte.weight", (("vocab", vocab), embed)),
        Weight(f"{prefix}.wpe.weight", (("position", positions), embed)),
    )


def biased_head(hidden: int, vocab: int, *, tied: bool) -> dict[str, Any]:
    """The fields of an `lm_head` with a bias; tying shares the weight only, so the bias stays."""
    rows = ("vocab", vocab)
    if tied:
        return {"head": None, "head_extra": (Weight("lm_head.bias", (rows,)),)}
    return {"head": Linear("lm_head", ("embed", hidden), rows, bias=True)}


def mtp_parameters(config: Config, layer: Layer, hidden: int, vocab: int) -> int:
    """Elements of the multi-token-prediction modules, as checkpoints publish them.

    Each is a decoder layer, two norms over its inputs, a projection from 2 × hidden, a norm
    after it (transformers 5.17 modeling_layers.MtpLayer), and copies of the embedding and the
    head that loading drops (MtpModel._keys_to_ignore_on_load_unexpected). A config without
    `num_nextn_predict_layers` has none published.
    """
    modules = config.count("num_nextn_predict_layers", "num_mtp_layers", default=0)
    parameters = layer.num_parameters + 3 * hidden + 2 * hidden * hidden
    return modules * (parameters + 2 * vocab * hidden)
