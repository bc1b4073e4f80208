"""GPT-2: learned positions, fused qkv as Conv1D, dropout, tied head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Linear, Mlp, Norm, Weight
from .config import Config


def read_gpt2(data: Mapping[str, Any]) -> Arch:
    """GPT-2 (transformers 5.17 models/gpt2)."""
    config = Config(data)
    hidden = config.size("n_embd", "hidden_size", default=768)
    heads = config.size("n_head", "num_attention_heads", default=12)
    positions = config.size("n_positions", "max_position_embeddings", default=1024)
    vocab = config.size("vocab_size", default=50257)
    ffn = config.size("n_inner", default=4 * hidden)
    head_dim = config.divided(hidden, "heads", heads)
    embed = ("embed", hidden)
    attention = Attention(
        inputs=(Linear("c_attn", embed, ("heads", 3 * hidden), bias=True, transposed=True),),
        output=Linear("c_proj", ("heads", hidden), embed, bias=True, transposed=True),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        dropout=config.number("attn_pdrop", default=0.1),
        residual_dropout=config.number("resid_pdrop", default=0.1),
        float_softmax=False,
    )
    mlp = Mlp(
        inputs=(Linear("c_fc", embed, ("ffn", ffn), bias=True, transposed=True),),
        output=Linear("c_proj", ("ffn", ffn), embed, bias=True, transposed=True),
        ffn=ffn,
        gated=False,
        activation="gelu_new",
        dropout=config.number("resid_pdrop", default=0.1),
    )
    layer = Layer(
        kind="dense",
        mixer=attention,
        mixer_name="attn",
        mlp=mlp,
        norms=(
            ("pre", Norm("ln_1", embed, "layer", bias=True)),
            ("pre_mlp", Norm("ln_2", embed, "layer", bias=True)),
        ),
    )
    tied = config.flag("tie_word_embeddings", default=True)
    return Arch(
        family="gpt2",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=positions,
        layers=(layer,) * config.size("n_layer", "num_hidden_layers", default=12),
        layer_prefix="transformer.h",
        embedding=(
            Weight("transformer.wte.weight", (("vocab", vocab), embed)),
            Weight("transformer.wpe.weight", (("position", positions), embed)),
        ),
        embedding_dropout=config.number("embd_pdrop", default=0.1),
        final_norm=Norm("transformer.ln_f", embed, "layer", bias=True),
        head=None if tied else Linear("lm_head", embed, ("vocab", vocab)),
        tied=tied,
    )


FAMILIES = {"gpt2": read_gpt2}
