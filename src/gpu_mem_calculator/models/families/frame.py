"""A decoder around its layers: embedding, final norm, head, buffers; and stacks of layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from ..arch.arch import Arch, Buffer, Layer
from ..arch.blocks import Linear, Mixer, Mlp, Moe, Norm, Weight
from .config import Config
from .norms import pre_norms

Kind = TypeVar("Kind", bound=Hashable)


def decoder(
    config: Config,
    family: str,
    hidden: int,
    layers: tuple[Layer, ...],
    *,
    vocab: int,
    max_seq_len: int,
    tied: bool = False,
    rotary_dim: int | None = None,
    length: tuple[str, ...] = ("max_position_embeddings",),
    words: str = "model.embed_tokens",
    blocks: str = "model.layers",
    final_norm: Norm | None = None,
    **rest: Any,
) -> Arch:
    """The model around a stack; a part that the family does not name has the name that Llama uses.

    `vocab`, `max_seq_len` and `tied` are the family's defaults; `length` are keys of max_seq_len.
    """
    vocab = config.vocab(vocab)
    tied = config.flag("tie_word_embeddings", default=tied)
    embed, rows = ("embed", hidden), ("vocab", vocab)
    values: dict[str, Any] = {
        "embedding": (Weight(f"{words}.weight", (rows, embed)),),
        "head": None if tied else Linear("lm_head", embed, rows),
        "buffers": () if rotary_dim is None else rotary_buffer(rotary_dim),
    }
    return Arch(
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=config.size(*length, default=max_seq_len),
        layers=layers,
        layer_prefix=blocks,
        final_norm=final_norm or Norm("model.norm", embed),
        tied=tied,
        **values | rest,
    )


def decoder_layer(hidden: int, mixer: Mixer | None, mlp: Mlp | Moe | None, **rest: Any) -> Layer:
    """A layer whose kind follows from its MLP, with Llama's norms unless others are given."""
    kind = "moe" if isinstance(mlp, Moe) else "dense"
    values: dict[str, Any] = {"kind": kind, "norms": pre_norms(hidden)}
    return Layer(mixer=mixer, mlp=mlp, **values | rest)


def stacked(kinds: Iterable[Kind], build: Callable[[Kind], Layer]) -> tuple[Layer, ...]:
    """A layer for each kind; equal kinds share one."""
    kinds = tuple(kinds)
    built = {kind: build(kind) for kind in dict.fromkeys(kinds)}
    return tuple(built[kind] for kind in kinds)


def dense_first(
    config: Config, dense: Layer, sparse: Layer, layers: int, first: int = 0
) -> tuple[Layer, ...]:
    """`first_k_dense_replace` dense layers, then those with experts."""
    first = min(config.count("first_k_dense_replace", default=first), layers)
    return (dense,) * first + (sparse,) * (layers - first)


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
    modules = config.count("num_nextn_predict_layers", "num_mtp_layers")
    parameters = layer.num_parameters + 3 * hidden + 2 * hidden * hidden
    return modules * (parameters + 2 * vocab * hidden)
