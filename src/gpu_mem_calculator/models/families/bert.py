"""BERT as AutoModel loads it (BertModel): an encoder with a pooler and no head."""

from __future__ import annotations

from ..arch.arch import Arch, Buffer, Layer
from ..arch.blocks import Attention, Linear, Weight
from .config import Config, Fields
from .frame import decoder_layer
from .mlps import plain_mlp
from .norms import layer_norm, norms_at


def bert_layer(config: Config, hidden: int) -> Layer:
    """One layer; its norms come after each residual sum."""
    heads = config.size("num_attention_heads", default=12)
    embed, inner = ("embed", hidden), ("heads", hidden)
    dropout = config.number("hidden_dropout_prob", default=0.1)
    q, k, v = (Linear(f"self.{n}", embed, inner, bias=True) for n in ("query", "key", "value"))
    attention = Attention(
        inputs=(q, k, v),
        output=Linear("output.dense", inner, embed, bias=True),
        heads=heads,
        kv_heads=heads,
        head_dim=config.divided(hidden, "heads", heads),
        dropout=config.number("attention_probs_dropout_prob", default=0.1),
        residual_dropout=dropout,
    )
    names = ("intermediate.dense", "output.dense")
    mlp = plain_mlp(hidden, config.ffn(3072), config.activation("gelu"), names, dropout=dropout)
    places = (("post", "attention.output.LayerNorm"), ("post_mlp", "output.LayerNorm"))
    fields: Fields = {"mixer_name": "attention", "mlp_name": ""}
    fields |= {"kind": "encoder", "norms": norms_at(places, hidden, layer_norm)}
    return decoder_layer(hidden, attention, mlp, **fields)


def read_bert(config: Config) -> Arch:
    """BERT (transformers 5.17 models/bert BertModel)."""
    hidden = config.hidden(768)
    vocab = config.vocab(30522)
    positions = config.size("max_position_embeddings", default=512)
    types = config.size("type_vocab_size", default=2)
    embed, ids = ("embed", hidden), ("position_ids", "token_type_ids")
    return Arch(
        family="bert",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=positions,
        layers=(bert_layer(config, hidden),) * config.layers(12),
        layer_prefix="encoder.layer",
        embedding=(
            Weight("embeddings.word_embeddings.weight", (("vocab", vocab), embed)),
            Weight("embeddings.position_embeddings.weight", (("position", positions), embed)),
            Weight("embeddings.token_type_embeddings.weight", (("token_type", types), embed)),
        ),
        embedding_norm=layer_norm("embeddings.LayerNorm", hidden),
        embedding_dropout=config.number("hidden_dropout_prob", default=0.1),
        head_extra=tuple(Linear("pooler.dense", embed, ("pooled", hidden), bias=True).weights()),
        buffers=tuple(Buffer(f"embeddings.{name}", (1, positions), 64) for name in ids),
        trains=False,
    )


FAMILIES = {"bert": read_bert}
